//! A pace that is not exceeded for long: whoever is asked for the first time costs a connection,
//! and where very many nodes are silent at once, as those are whose leader was overloaded, asking
//! all of them again and again would keep the servers from hearing them.

use lockmesh_protocol::time::Time;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Pace {
    interval: Duration,
    /// What is left of the pace may be made up for so long.
    burst: Duration,
    free_at: Time,
}

impl Pace {
    /// So many a second, of which so many at once.
    pub(super) fn new(a_second: u32, at_once: u32) -> Self {
        let interval = Duration::from_secs(1) / a_second;
        Self { interval, burst: interval * at_once, free_at: Time(0) }
    }

    /// Takes one, if there is one.
    pub(super) fn take(&mut self, now: Time) -> bool {
        let next = self.free_at + self.interval;
        if next.since(now) > self.burst {
            return false;
        }
        self.free_at = next.max(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use lockmesh_protocol::time::Time;
    use std::time::Duration;

    fn taken(pace: &mut Pace, now: Time) -> usize {
        (0..1_000).filter(|_| pace.take(now)).count()
    }

    #[test]
    fn so_many_at_once_and_then_so_many_a_second() {
        let (mut pace, begin) = (Pace::new(100, 10), Time(5_000_000));
        assert!((10..=11).contains(&taken(&mut pace, begin)));
        assert_eq!(taken(&mut pace, begin), 0);
        assert_eq!(taken(&mut pace, begin + Duration::from_millis(50)), 5);
        // Nobody gathers more than fits at once.
        assert!((10..=11).contains(&taken(&mut pace, begin + Duration::from_secs(60))));
    }
}
