//! A leader's guarantees for lock waits in virtual time: lower and upper bounds.

crate::script::stories! { crate::single::Single, "queue.txt",
    wait_lasts_exactly_its_timeout retry_keeps_position_renews_timeout restart_renews_full_wait
    server_pause_extends_wait waiter_granted_after_lock_delay wait_capped_at_one_hour
    wait_metric_counts_grants_only
}
