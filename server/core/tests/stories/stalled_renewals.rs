//! Requests that wait for a leader's stalled disk, while the other servers still commit the
//! leader's proposals.

crate::script::stories! { crate::judge::Fleet, "stalled_renewals.txt",
    waiting_renewal_delays_expiry_renews_ttl timed_out_renewal_allows_expiry
    stalled_disk_times_out_requests unreplicated_write_names_stalled_servers
}
