//! Slots of an index file: the newest entry of each chain. [IndexFile.putKey]
//!
//! ```text
//! key      hash u32 | offset i64
//! entry    hash i32 | offset i64 | seconds i32 | number of the older entry i32
//! ```

#![forbid(unsafe_code)]

use std::io;

use memmap2::MmapMut;

pub const KEY_SIZE: usize = 12;
pub const ENTRY_SIZE: usize = 20;
const SLOT_SIZE: usize = 4;
const PAGE: usize = 4096;

/// Slots of one index file. Entries are numbered from 1; a slot of 0 is empty.
pub struct IndexSlots {
    // In the byte order of the file. Zeros from the operating system: pages that are never written take no memory.
    table: MmapMut,
    count: usize,
}

/// Entries of a file that continue the chains of their slots.
#[derive(Debug, PartialEq)]
pub struct ContinuedChains {
    pub length: usize,
    pub slots_used: usize,
    pub last_offset: i64,
}

/// Which entries are valid, in addition to the chain.
pub struct EntryBounds {
    pub last_offset: i64,
    pub offset_end: i64,
    pub allows_zeros: bool,
}

impl IndexSlots {
    /// Return `count` empty slots. There is at least one.
    pub fn new(count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let size = count.checked_mul(SLOT_SIZE).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { table: MmapMut::map_anon(size)?, count })
    }

    /// Return the number of the newest entry of a slot.
    pub fn newest(&self, slot: usize) -> Option<i32> {
        (slot < self.count).then(|| i32_at(&self.table, SLOT_SIZE * slot))
    }

    /// Link new entries, one per key, and make each the newest of its slot.
    ///
    /// `seconds` are runs `(keys, seconds)`, and `number` is that of the first entry. Returns the entries, up to the first whose
    /// slot names an entry that does not exist, and how many slots were empty.
    pub fn link(&mut self, keys: &[u8], seconds: &[(usize, i32)], number: i32) -> (Vec<u8>, usize) {
        let mut entries = Vec::with_capacity(keys.len() / KEY_SIZE * ENTRY_SIZE);
        let (mut slots_used, mut next) = (0, number);
        let times = seconds.iter().flat_map(|(count, seconds)| std::iter::repeat_n(*seconds, *count));
        for (key, seconds) in keys.chunks_exact(KEY_SIZE).zip(times) {
            let hash = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
            let slot = SLOT_SIZE * (hash as usize % self.count);
            let older = i32_at(&self.table, slot);
            if !(0..next).contains(&older) {
                break;
            }
            self.table[slot..slot + SLOT_SIZE].copy_from_slice(&next.to_be_bytes());
            slots_used += usize::from(older == 0);
            next += 1;
            let mut entry = [0; ENTRY_SIZE];
            entry[..12].copy_from_slice(key);
            entry[12..16].copy_from_slice(&seconds.to_be_bytes());
            entry[16..].copy_from_slice(&older.to_be_bytes());
            entries.extend_from_slice(&entry);
        }
        (entries, slots_used)
    }

    /// Make entries of the file, the first with this `number`, the newest of their slots.
    ///
    /// Stops before the first that is out of bounds, has a negative hash, or does not name the newest entry of its slot.
    pub fn continue_chains(&mut self, entries: &[u8], number: i32, bounds: EntryBounds) -> ContinuedChains {
        let (mut length, mut slots_used, mut last_offset) = (0, 0, bounds.last_offset);
        for entry in entries.chunks_exact(ENTRY_SIZE) {
            let (hash, older) = (i32_at(entry, 0), i32_at(entry, 16));
            let offset = i64::from(i32_at(entry, 4)) << 32 | i64::from(i32_at(entry, 8) as u32);
            let Ok(value) = usize::try_from(hash) else { break };
            let slot = SLOT_SIZE * (value % self.count);
            if i32_at(&self.table, slot) != older || !(last_offset..bounds.offset_end).contains(&offset) {
                break;
            }
            if !bounds.allows_zeros && entry.iter().all(|byte| *byte == 0) {
                break;
            }
            self.table[slot..slot + SLOT_SIZE].copy_from_slice(&i32::to_be_bytes(number + length));
            slots_used += usize::from(older == 0);
            last_offset = offset;
            length += 1;
        }
        ContinuedChains { length: length as usize, slots_used, last_offset }
    }

    /// Set the slots of a new table from byte `position` on. Returns whether `data` is part of the table.
    pub fn load(&mut self, position: usize, data: &[u8]) -> bool {
        let Some(part) = self.table.get_mut(position..position.saturating_add(data.len())) else { return false };
        for (slots, stored) in part.chunks_mut(PAGE).zip(data.chunks(PAGE)) {
            if stored.iter().any(|byte| *byte != 0) {
                slots.copy_from_slice(stored); // zeros are not written, they would take memory
            }
        }
        position % SLOT_SIZE == 0 && data.len() % SLOT_SIZE == 0
    }

    /// Return up to `size` bytes of the table from byte `position` on.
    pub fn dump(&self, position: usize, size: usize) -> &[u8] {
        let start = self.table.len().min(position);
        &self.table[start..self.table.len().min(start.saturating_add(size))]
    }
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(hash: u32, offset: i64) -> Vec<u8> {
        [&hash.to_be_bytes()[..], &offset.to_be_bytes()].concat()
    }

    fn entry(hash: i32, offset: i64, seconds: i32, older: i32) -> Vec<u8> {
        [&key(hash as u32, offset)[..], &seconds.to_be_bytes(), &older.to_be_bytes()].concat()
    }

    const ANY: EntryBounds = EntryBounds { last_offset: 0, offset_end: i64::MAX, allows_zeros: true };

    #[test]
    fn chains_run_from_the_newest_entry_to_the_oldest() {
        let mut slots = IndexSlots::new(4).unwrap();
        let keys = [key(5, 100), key(9, 200), key(2, 200)].concat();
        let (entries, slots_used) = slots.link(&keys, &[(1, 0), (2, 7)], 1);
        assert_eq!(entries, [entry(5, 100, 0, 0), entry(9, 200, 7, 1), entry(2, 200, 7, 0)].concat());
        assert_eq!(slots_used, 2);
        assert_eq!(slots.dump(0, 100), [0, 2, 3, 0i32].map(i32::to_be_bytes).concat());
        let mut rebuilt = IndexSlots::new(4).unwrap();
        let expected = ContinuedChains { length: 3, slots_used: 2, last_offset: 200 };
        assert_eq!(rebuilt.continue_chains(&entries, 1, ANY), expected);
        assert_eq!(rebuilt.dump(4, 8), slots.dump(4, 8));
    }

    #[test]
    fn slots_that_name_impossible_entries_end_the_batch() {
        for older in [-1, i32::MIN, 4, i32::MAX] {
            let mut slots = IndexSlots::new(2).unwrap();
            assert!(slots.load(4, &i32::to_be_bytes(older)));
            assert!(!slots.load(8, &[0; 4]) && !slots.load(usize::MAX, &[0; 4]));
            let keys = [key(2, 1), key(3, 2), key(4, 3)].concat();
            assert_eq!(slots.link(&keys, &[(3, 0)], 3), (entry(2, 1, 0, 0), 1));
            assert_eq!((slots.newest(0), slots.newest(1), slots.newest(2)), (Some(3), Some(older), None));
        }
    }

    #[test]
    fn entries_out_of_bounds_end_the_chains() {
        let mut zeros = IndexSlots::new(3).unwrap();
        let bounds = EntryBounds { allows_zeros: false, ..ANY };
        assert_eq!(zeros.continue_chains(&[0; 40], 1, bounds).length, 0);
        assert_eq!(zeros.continue_chains(&entry(-1, 5, 0, 0), 1, ANY).length, 0);
        assert_eq!(zeros.continue_chains(&entry(1, -5, 0, 0), 1, ANY).length, 0);
        assert_eq!(zeros.continue_chains(&entry(1, 5, 0, 9), 1, ANY).length, 0);
        let bounds = EntryBounds { offset_end: 5, ..ANY };
        assert_eq!(zeros.continue_chains(&entry(1, 5, 0, 0), 1, bounds).length, 0);
        assert_eq!(zeros.dump(0, 12), [0; 12]);
    }

    #[test]
    fn tables_that_do_not_fit_into_memory_are_refused() {
        assert!(IndexSlots::new(usize::MAX / 8).is_err());
    }
}
