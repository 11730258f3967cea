//! Stalled disks: a leader whose own disk stalls hands over, and all indicators of a stall agree.

crate::script::stories! { crate::judge::Fleet, "disk_stall.txt",
    stalled_leader_hands_over_within_2s stalled_follower_is_unhealthy idle_stalled_disk_changes_nothing
    stalled_leader_stays_without_writable_majority stalled_leader_steps_down_without_successor
    process_pause_is_not_stall recovered_server_is_elected_last
}
