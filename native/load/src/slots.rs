//! Requests in flight: their opaques, and when each was sent.
//!
//! An opaque is BASE + generation * capacity + slot, so that it always has ten digits and the slot of an answer is a mask away;
//! the generation detects a second answer to the same request.

const BASE: u32 = 1_000_000_000;
/// Opaques stay below 2^31.
const RANGE: u32 = 1 << 30;
pub const IN_FLIGHT_MAX: usize = 1 << 20;

#[derive(Clone, Copy)]
pub struct Slot {
    /// Opaque of the request; 0 if the slot is free.
    opaque: u32,
    /// When the request was sent, or was due with a fixed rate; ns since the start.
    pub since_ns: u64,
    /// Queue of the request.
    pub queue: u32,
}

pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    mask: u32,
    /// Added to the opaques of a slot at each use.
    generation: u32,
}

impl Slots {
    /// Make room for so many requests in flight.
    pub fn new(count: usize) -> Slots {
        let capacity = count.next_power_of_two() as u32;
        Slots {
            slots: vec![Slot { opaque: 0, since_ns: 0, queue: 0 }; count],
            free: (0..count as u32).rev().collect(),
            mask: capacity - 1,
            generation: 0,
        }
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Note a request; return its opaque. Call only if there is room.
    pub fn take(&mut self, since_ns: u64, queue: u32) -> u32 {
        let slot = self.free.pop().expect("has_room() was checked");
        self.generation = (self.generation + self.mask + 1) % RANGE;
        let opaque = BASE + self.generation + slot;
        self.slots[slot as usize] = Slot { opaque, since_ns, queue };
        opaque
    }

    /// Return the request that an answer belongs to, and free its slot; None if there is not one in flight.
    pub fn complete(&mut self, opaque: i32) -> Option<Slot> {
        let opaque = u32::try_from(opaque).ok()?;
        let number = opaque.checked_sub(BASE)? & self.mask;
        let slot = self.slots.get_mut(number as usize).filter(|slot| slot.opaque == opaque)?;
        let request = *slot;
        slot.opaque = 0;
        self.free.push(number);
        Some(request)
    }

    /// Describe what is in flight, for an error message.
    pub fn describe(&self, now_ns: u64) -> String {
        let pending = self.slots.iter().filter(|slot| slot.opaque != 0);
        match pending.min_by_key(|slot| slot.since_ns) {
            Some(slot) => format!(
                "{} in flight; the oldest has opaque {}, is for queue {} and was sent {:.1} s ago",
                self.in_flight(),
                slot.opaque,
                slot.queue,
                now_ns.saturating_sub(slot.since_ns) as f64 / 1e9
            ),
            None => "none in flight".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaques_are_distinct_and_have_ten_digits() {
        let mut slots = Slots::new(3);
        let mut seen = std::collections::HashSet::new();
        for round in 0..100 {
            let opaques: Vec<u32> = (0..3).map(|queue| slots.take(round, queue)).collect();
            assert!(!slots.has_room());
            for opaque in opaques {
                assert!(seen.insert(opaque) && (1_000_000_000..1 << 31).contains(&opaque));
                assert_eq!(slots.complete(opaque as i32).unwrap().since_ns, round);
                assert!(slots.complete(opaque as i32).is_none(), "a second answer to {opaque}");
            }
        }
        assert_eq!(slots.in_flight(), 0);
    }

    #[test]
    fn generations_wrap_within_the_range_of_opaques() {
        let mut slots = Slots::new(IN_FLIGHT_MAX);
        for _ in 0..3000 {
            let opaque = slots.take(0, 0);
            assert!((BASE..1 << 31).contains(&opaque));
            assert!(slots.complete(opaque as i32).is_some());
        }
    }

    #[test]
    fn answers_without_a_request_are_ignored() {
        let mut slots = Slots::new(3);
        let opaque = slots.take(5_000_000_000, 2) as i32;
        for other in [0, -1, opaque + 1, opaque + 3, opaque + 4, i32::MAX, i32::MIN] {
            assert!(slots.complete(other).is_none());
        }
        assert!(slots.describe(7_000_000_000).contains("1 in flight"));
        assert!(slots.describe(7_000_000_000).contains("for queue 2 and was sent 2.0 s ago"));
    }
}
