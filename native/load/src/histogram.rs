//! Histogram of durations with an error below 1 %: each power of two is divided into 128 equal buckets.
//!
//! Recording is an index computation and an increment, so that a load of a million requests a second pays for it with some
//! nanoseconds each. Histograms of threads are merged at the end.

const SUB_BITS: u32 = 7;
/// Values from 2^40 ns (18 minutes) on are counted in the last bucket; `max` stays exact.
const MAX_BITS: u32 = 40;
const BUCKETS: usize = ((MAX_BITS - SUB_BITS + 1) as usize) << SUB_BITS;

/// Durations in nanoseconds.
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], count: 0, max: 0 }
    }
}

impl Histogram {
    /// Record one duration.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        self.max = self.max.max(ns);
    }

    /// Add the durations of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// Return the number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Return the longest duration in nanoseconds, exactly; 0 without any.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Return the duration in nanoseconds that `percent` of all durations do not exceed; 0 without any.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = ((percent / 100.0 * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound(index).min(self.max);
            }
        }
        self.max
    }

    /// Iterate over upper bound in nanoseconds and count of each bucket that is not empty, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(index, count)| (upper_bound(index).min(self.max), *count))
    }
}

/// Values below 256 have a bucket each; above, the top SUB_BITS + 1 bits select it.
fn bucket(ns: u64) -> usize {
    let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(SUB_BITS + 1);
    let index = ((shift as usize) << SUB_BITS) + (ns >> shift) as usize;
    index.min(BUCKETS - 1)
}

fn upper_bound(index: usize) -> u64 {
    let shift = (index >> SUB_BITS).saturating_sub(1) as u32;
    let top = (index - ((shift as usize) << SUB_BITS)) as u64;
    ((top + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_within_one_percent_of_its_bucket() {
        let mut value: u64 = 1;
        while value < 1 << (MAX_BITS - 1) {
            for ns in [value - 1, value, value + value / 3] {
                let bound = upper_bound(bucket(ns));
                assert!(bound >= ns && (bound - ns) as f64 <= ns as f64 / 100.0, "{ns} ns is counted as {bound} ns");
            }
            value *= 2;
        }
    }

    #[test]
    fn buckets_ascend_without_a_gap() {
        for index in 1..BUCKETS {
            assert_eq!(bucket(upper_bound(index - 1) + 1), index);
        }
    }

    #[test]
    fn percentiles_of_known_values() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|us| histogram.record(us * 1000));
        for (percent, expected) in [(50.0, 500_000.0), (99.0, 990_000.0), (99.9, 999_000.0)] {
            let measured = histogram.percentile(percent) as f64;
            assert!((measured - expected).abs() <= expected / 100.0, "p{percent} is {measured}");
        }
        assert_eq!(histogram.max(), 1_000_000);
        assert_eq!(histogram.percentile(100.0), 1_000_000);
    }

    #[test]
    fn merging_adds_counts_and_keeps_the_maximum() {
        let (mut first, mut second) = (Histogram::default(), Histogram::default());
        first.record(10);
        second.record(1 << 50);
        second.record(20);
        first.merge(&second);
        assert_eq!((first.count(), first.max(), first.percentile(1.0)), (3, 1 << 50, 10));
        assert_eq!(first.buckets().map(|(_, count)| count).sum::<u64>(), 3);
    }

    #[test]
    fn an_empty_histogram_reports_zero() {
        assert_eq!((Histogram::default().percentile(99.0), Histogram::default().max()), (0, 0));
    }
}
