//! A file in memory, for reading only. The only module with unsafe code: two lines, each with its proof.
//!
//! A process that touches a mapped page which the disk cannot deliver is killed by SIGBUS, so no byte is touched before `load`
//! has had the kernel bring it into memory. `docs/decisions/0008` has the facts.

#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;

use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

use crate::pull::LoadedBytes;

/// The map of a file. Its bytes are copied out; no reference to them ever exists, because pwrite changes them.
#[derive(Debug)]
pub struct FileMap {
    map: MmapRaw,
    resident_max: usize, // bytes that are loaded before all pages are released: they count as memory of the process
    resident: usize,     // bytes loaded since then
    loaded: Range<usize>, // of the last `load`; within the map
}

impl FileMap {
    /// Map the first `size` bytes of the open file `handle`, which has at least so many.
    pub fn open(handle: RawFd, size: usize, resident_max: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(size).map_raw_read_only(handle)?;
        Ok(Self { map, resident_max, resident: 0, loaded: 0..0 })
    }

    /// Return whether the bytes of `range` are in memory: until the next call they can be copied.
    pub fn load(&mut self, range: Range<usize>) -> bool {
        self.loaded = 0..0;
        if range.start >= range.end || range.end > self.map.len() {
            return false;
        }
        self.resident = self.resident.saturating_add(range.len());
        if self.resident > self.resident_max {
            self.resident = range.len();
            // SAFETY: the map is a shared one of a file, whose pages the kernel fills again from that file. No reference to
            // them exists, and `loaded` is empty, so that nothing reads them before they are loaded again.
            if unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) }.is_err() {
                return false;
            }
        }
        if self.map.advise_range(Advice::PopulateRead, range.start, range.len()).is_err() {
            return false;
        }
        self.loaded = range;
        true
    }

    /// Return whether the last `load` loaded the bytes from `start` to `stop`.
    pub fn is_loaded(&self, start: usize, stop: usize) -> bool {
        self.loaded.start <= start && stop <= self.loaded.end
    }
}

impl LoadedBytes for FileMap {
    fn copy(&self, start: usize, to: &mut [u8]) -> bool {
        let is_loaded = start.checked_add(to.len()).is_some_and(|stop| self.is_loaded(start, stop));
        if is_loaded {
            // SAFETY: `start..start + to.len()` is within `loaded`, so within the map, which lives as long as `self` and was
            // made readable; its pages were in memory at the last `load`. `to` is exclusively borrowed memory of Rust's, so
            // it does not overlap the map, which no reference points to: what pwrite changes there breaks no promise.
            unsafe { ptr::copy_nonoverlapping(self.map.as_ptr().add(start), to.as_mut_ptr(), to.len()) };
        }
        is_loaded
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    const SIZE: usize = 1 << 20;

    fn file(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("ariane-{}-{name}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(SIZE as u64).unwrap();
        file
    }

    fn open(file: &File, resident_max: usize) -> FileMap {
        FileMap::open(file.as_raw_fd(), SIZE, resident_max).unwrap()
    }

    fn read(map: &FileMap, range: Range<usize>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        map.copy(range.start, &mut bytes).then_some(bytes)
    }

    #[test]
    fn a_map_has_what_pwrite_wrote_after_it() {
        let file = file("written");
        let mut map = open(&file, SIZE);
        file.write_all_at(b"written", 5000).unwrap();
        assert!(map.load(4990..5010));
        assert_eq!(read(&map, 5000..5008).unwrap(), b"written\0");
        file.set_len(10).unwrap();
        file.set_len(SIZE as u64).unwrap();
        assert!(map.load(5000..5007));
        assert_eq!(read(&map, 5000..5007).unwrap(), [0; 7]);
    }

    #[test]
    fn only_loaded_bytes_can_be_copied() {
        let file = file("loaded");
        let mut map = open(&file, SIZE);
        assert_eq!(read(&map, 0..1), None);
        assert!(map.load(5000..6000));
        assert_eq!(read(&map, 5000..6000).unwrap(), [0; 1000]);
        for range in [4999..5001, 5999..6001, 6000..6001, usize::MAX - 1..usize::MAX] {
            assert_eq!(read(&map, range), None);
        }
        for range in [5..5, SIZE - 1..SIZE + 1, usize::MAX - 1..usize::MAX] {
            assert!(!map.load(range));
            assert_eq!(read(&map, 5000..5001), None);
        }
    }

    #[test]
    fn a_shorter_file_does_not_load() {
        let file = file("shorter");
        let mut map = open(&file, SIZE);
        assert!(map.load(0..SIZE));
        file.set_len(SIZE as u64 / 2).unwrap();
        assert!(!map.load(SIZE - 10..SIZE));
        assert!(!map.load(0..SIZE));
        assert!(map.load(0..SIZE / 2));
        assert!(FileMap::open(-1, SIZE, SIZE).is_err());
    }

    #[test]
    fn pages_are_released_and_loaded_again() {
        let file = file("released");
        let data: Vec<u8> = (0..SIZE).map(|number| (number % 251) as u8).collect();
        file.write_all_at(&data, 0).unwrap();
        let mut map = open(&file, 10_000);
        for start in (0..SIZE - 5000).step_by(4000) {
            assert!(map.load(start..start + 5000));
            assert!(map.resident <= 10_000);
            assert_eq!(read(&map, start..start + 5000).unwrap(), data[start..start + 5000]);
        }
    }
}
