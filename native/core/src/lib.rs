//! Native core of Ariane: the same results as `ariane.kernels`, from the same values.
//!
//! The modules know nothing of Python; this file holds all of the binding. Bytes are borrowed from the caller for one call,
//! and the results are new objects. `None` and a stop mean "the slow path decides"; ValueError and TypeError mean that the
//! caller is wrong; a panic becomes a RuntimeError, which never happens unless this crate has a bug.

#![deny(unsafe_code)] // `file_map` allows it: its two lines have their proofs beside them

pub mod arrow;
pub mod batch;
pub mod columns;
#[cfg(target_os = "linux")]
pub mod file_map;
#[cfg(all(unix, feature = "grpc"))]
pub mod grpc;
pub mod header;
pub mod index;
pub mod json;
pub mod layout;
pub mod pattern;
pub mod properties;
pub mod pull;
pub mod pull_turn;
pub mod record;
pub mod response;
pub mod run;
pub mod scan;
pub mod signed;
pub mod signed_header;
pub mod slots;
pub mod turn;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod ariane_native {
    use std::collections::HashSet;
    use std::ops::Range;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use pyo3::exceptions::{PyIndexError, PyMemoryError, PyOverflowError, PyRuntimeError, PyValueError};
    use pyo3::prelude::*;
    use pyo3::types::{PyBytes, PyList, PySlice, PyString, PyTuple};

    use crate::arrow::Column;
    use crate::columns::{self, Fault};
    #[cfg(target_os = "linux")]
    use crate::file_map;
    use crate::layout;
    use crate::pull::{self, LoadedBytes};
    use crate::pull_turn::{self, LoadableBytes};
    use crate::record::Host;
    use crate::run::Run;
    use crate::scan;
    use crate::signed;
    use crate::slots;
    use crate::turn;

    #[cfg(unix)]
    #[pymodule_export]
    use crate::grpc::binding::{GrpcPort, PlainAcks, PlainSends};

    /// Version of the interface to `ariane.kernels`, which must expect this one.
    #[pymodule_export]
    const INTERFACE_VERSION: u32 = 6;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Call `work`; a panic in it becomes a RuntimeError.
    fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Err(PyRuntimeError::new_err(format!("ariane_native failed, please report this: {text}")))
        })
    }

    fn packed_v4(name: &str, host: &[u8]) -> PyResult<Host> {
        Host::try_from(host).map_err(|_| {
            PyValueError::new_err(format!("Invalid {name} of {} bytes: expected 8, a packed IPv4 address", host.len()))
        })
    }

    /// Encodes runs of plain sends. The interface is that of `ariane.kernels.sends.send_turn.SendEncoder`.
    #[pyclass]
    struct SendEncoder(turn::SendEncoder);

    #[pymethods]
    impl SendEncoder {
        #[new]
        #[pyo3(signature = (*, store_host, cluster, region, trace_on, header_max, body_max, is_indexed, exceptional))]
        #[allow(clippy::too_many_arguments)] // keyword-only, one per setting
        fn new(
            store_host: &[u8],
            cluster: String,
            region: String,
            trace_on: bool,
            header_max: usize,
            body_max: usize,
            is_indexed: bool,
            exceptional: HashSet<String>,
        ) -> PyResult<Self> {
            let store_host = packed_v4("store_host", store_host)?;
            Ok(Self(turn::SendEncoder::new(turn::Settings {
                store_host,
                cluster,
                region,
                trace_on,
                header_max,
                body_max,
                is_indexed,
                exceptional: exceptional.into_iter().collect(),
            })))
        }

        /// Most frames of a run.
        #[classattr]
        fn frames_max() -> usize {
            turn::FRAMES_MAX
        }

        /// Return `(position, sends, records, [(topic, queue_id, entries, sends, size)], keys, responses)`.
        fn encode<'py>(
            &mut self,
            py: Python<'py>,
            data: &[u8],
            position: usize,
            born_host: &[u8],
            log_end: (i64, i64, i64),
            next_offset: &Bound<'py, PyAny>,
        ) -> PyResult<Bound<'py, PyTuple>> {
            let born_host = packed_v4("born_host", born_host)?;
            let (offset, room, store_ms) = log_end;
            guarded(|| {
                let log_end = turn::LogEnd { offset, room, store_ms };
                let run = self.0.encode(data, position, born_host, log_end, |topic, queue_id| {
                    next_offset.call1((topic, queue_id))?.extract::<i64>()
                })?;
                to_python(py, run)
            })
        }
    }

    /// Verifies runs of signed requests. The interface is that of `ariane.kernels.signed_runs.SignatureChecker`.
    #[pyclass]
    struct SignatureChecker(signed::SignatureChecker);

    #[pymethods]
    impl SignatureChecker {
        #[new]
        fn new(secrets: Vec<(String, String)>, fields: Vec<(i64, Vec<String>)>) -> Self {
            Self(signed::SignatureChecker::new(&secrets, fields))
        }

        /// Return `(frames, positions, starts)`.
        fn check<'py>(
            &mut self,
            py: Python<'py>,
            data: &[u8],
            position: usize,
            header_max: usize,
            frames_max: usize,
            permit: &Bound<'py, PyAny>,
        ) -> PyResult<(Bound<'py, PyBytes>, Vec<usize>, Vec<usize>)> {
            guarded(|| {
                let mut ask = |access_key: &str, code: i64, values: &[Option<&str>]| -> PyResult<bool> {
                    permit.call1((access_key, code, PyTuple::new(py, values)?))?.is_truthy()
                };
                self.0.check(data, position, header_max, frames_max, &mut ask)?;
                let run = &self.0.run;
                let frames = PyBytes::new_with(py, run.size(), |frames| {
                    run.write(data, frames);
                    Ok(())
                })?;
                Ok((frames, run.positions.clone(), run.starts.clone()))
            })
        }
    }

    /// A file in memory. The interface is that of `ariane.kernels.pulls.pull_selection.FileMap`.
    #[cfg(target_os = "linux")]
    #[pyclass]
    struct FileMap(Option<file_map::FileMap>); // None once it is closed

    #[cfg(target_os = "linux")]
    #[pymethods]
    impl FileMap {
        #[new]
        fn new(handle: i32, size: usize, resident_max: usize) -> PyResult<Self> {
            Ok(Self(Some(file_map::FileMap::open(handle, size, resident_max)?)))
        }

        fn load(&mut self, start: usize, stop: usize) -> PyResult<bool> {
            Ok(self.0.as_mut().ok_or_else(closed)?.load(start..stop))
        }

        fn __getitem__<'py>(&self, part: &Bound<'py, PySlice>) -> PyResult<Bound<'py, PyBytes>> {
            let map = self.0.as_ref().ok_or_else(closed)?;
            let (start, stop): (usize, usize) = (part.getattr("start")?.extract()?, part.getattr("stop")?.extract()?);
            let size = stop.checked_sub(start).filter(|_| map.is_loaded(start, stop));
            let size = size.ok_or_else(|| PyValueError::new_err(format!("Bytes {start} to {stop} are not loaded")))?;
            PyBytes::new_with(part.py(), size, |bytes| {
                map.copy(start, bytes);
                Ok(())
            })
        }

        fn close(&mut self) {
            self.0 = None;
        }
    }

    #[cfg(target_os = "linux")]
    fn closed() -> PyErr {
        PyValueError::new_err("The map is closed")
    }

    type Limits = (i64, i64, i64, i64, i64, i64);

    /// Return `(body, sizes, scanned, last, is_removed)`, or None. The interface is that of
    /// `ariane.kernels.pulls.pull_selection.select_messages`.
    #[pyfunction]
    fn select_messages<'py>(
        entries: &[u8],
        log_map: &Bound<'py, PyAny>,
        base: i64,
        size: usize,
        codes: Option<&Bound<'py, PyAny>>,
        limits: Limits,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let codes = codes.map(tags_codes).transpose()?;
        let (log_start, recent_from, count_max, bytes_max, disk_count_max, disk_bytes_max) = limits;
        let limits = pull::Limits { log_start, recent_from, count_max, bytes_max, disk_count_max, disk_bytes_max };
        guarded(|| {
            let py = log_map.py();
            let Some(selection) = pull::select(entries, codes.as_ref(), &limits) else { return Ok(None) };
            let places = &selection.places[..];
            let body = if places.is_empty() {
                PyBytes::new(py, b"")
            } else {
                let body = match pull::span(places, base, size) {
                    Some(span) => gather(log_map, places, base, span)?,
                    None => gather_far(log_map, places, base, size)?,
                };
                let Some(body) = body else { return Ok(None) };
                body
            };
            let sizes = PyTuple::new(py, places.iter().map(|place| place.size))?;
            Ok(Some((body, sizes, selection.scanned, selection.last, selection.is_removed).into_pyobject(py)?))
        })
    }

    /// Known headers of pulls. The interface is that of `ariane.kernels.pulls.pull_reader`.
    ///
    /// In a box: its searchers contain vectors of 32 bytes, and Python aligns its objects to 16.
    #[pyclass]
    #[derive(Default)]
    struct PullHeaders(Box<pull_turn::Headers<Py<PyAny>>>);

    const _: () = assert!(align_of::<PullHeaders>() <= 16);

    type FoundPull<'py> = (Bound<'py, PyAny>, i64, i64, i64, i64, i64, usize);

    #[pymethods]
    impl PullHeaders {
        #[new]
        fn new() -> Self {
            Self::default()
        }

        fn learn(&mut self, key: &[u8], value: Py<PyAny>) {
            self.0.learn(key, value);
        }

        fn clear(&mut self) {
            self.0.clear();
        }

        /// Return `(value, queue id, queue offset, commit offset, opaque, form, end)` of a pull whose header is known, or None.
        fn find<'py>(
            &mut self,
            py: Python<'py>,
            data: &[u8],
            position: usize,
            header_max: usize,
        ) -> PyResult<Option<FoundPull<'py>>> {
            guarded(|| {
                let Some((value, pull)) = self.0.find(data, position, header_max) else { return Ok(None) };
                let pull_turn::Pull { queue_id, queue_offset, commit_offset, opaque, end } = pull;
                Ok(Some((value.bind(py).clone(), queue_id, queue_offset, commit_offset, opaque, 0, end)))
            })
        }
    }

    /// The map of the log that the pulls of a turn read.
    enum LogMap<'a, 'py> {
        #[cfg(target_os = "linux")]
        Native(&'a mut file_map::FileMap),
        Python {
            map: &'a Bound<'py, PyAny>,
            start: usize,
            data: Option<Bound<'py, PyBytes>>,
        },
    }

    impl LoadedBytes for LogMap<'_, '_> {
        fn copy(&self, start: usize, to: &mut [u8]) -> bool {
            match self {
                #[cfg(target_os = "linux")]
                LogMap::Native(map) => map.copy(start, to),
                LogMap::Python { start: first, data, .. } => data
                    .as_ref()
                    .is_some_and(|data| pull::Copied { start: *first, data: data.as_bytes() }.copy(start, to)),
            }
        }
    }

    impl LoadableBytes for LogMap<'_, '_> {
        type Error = PyErr;

        fn loads_far(&self) -> bool {
            !matches!(self, LogMap::Python { .. }) // preads cost less than the calls
        }

        fn load(&mut self, range: Range<usize>) -> PyResult<bool> {
            match self {
                #[cfg(target_os = "linux")]
                LogMap::Native(map) => Ok(map.load(range)),
                LogMap::Python { map, start, data } => {
                    *data = None;
                    if !map.call_method1("load", (range.start, range.end))?.is_truthy()? {
                        return Ok(false);
                    }
                    let slice = PySlice::new(map.py(), range.start as isize, range.end as isize, 1);
                    (*start, *data) = (range.start, Some(map.get_item(slice)?.cast_into::<PyBytes>()?));
                    Ok(true)
                }
            }
        }
    }

    // base, file size, log start, recent from, count, bytes, count and bytes of old records, bytes of the turn
    type Source = (i64, usize, i64, i64, i64, i64, i64, i64, usize);
    // entries, count, codes, number of the first entry, start and end of the queue, both brokers, opaque
    type Query<'py> = (Bound<'py, PyBytes>, i64, Option<Bound<'py, PyAny>>, i64, i64, i64, (i64, i64), i64);
    // responses; messages, bytes, offset of the last record that was examined, store time of the last message
    type Answered<'py> = (Bound<'py, PyBytes>, Vec<(usize, usize, i64, i64)>);

    /// Return the responses of the first queries. The interface is that of `ariane.kernels.pulls.pull_answers.answer_pulls`.
    #[pyfunction]
    fn answer_pulls<'py>(
        py: Python<'py>,
        queries: Vec<Query<'py>>,
        log_map: &Bound<'py, PyAny>,
        source: Source,
        texts: Vec<Vec<u8>>,
    ) -> PyResult<Answered<'py>> {
        let (base, size, log_start, recent_from, count_max, bytes_max, disk_count_max, disk_bytes_max, turn_bytes) =
            source;
        let limits = pull::Limits { log_start, recent_from, count_max, bytes_max, disk_count_max, disk_bytes_max };
        let source = pull_turn::Source { base, size, limits, turn_bytes };
        let queries = queries.iter().map(|(entries, count_max, codes, first, low, high, brokers, opaque)| {
            let codes = codes.as_ref().map(tags_codes).transpose()?;
            let (entries, bounds) = (entries.as_bytes(), (*low, *high));
            let (count_max, first, opaque) = (*count_max, *first, *opaque);
            Ok(pull_turn::Query { entries, count_max, codes, first, bounds, brokers: *brokers, opaque })
        });
        let queries = queries.collect::<PyResult<Vec<_>>>()?;
        guarded(|| {
            let mut answers = pull_turn::prepare(&queries, &source, &texts).unwrap_or_default();
            #[cfg(target_os = "linux")]
            if let Ok(map) = log_map.cast_exact::<FileMap>() {
                let mut map = map.try_borrow_mut()?;
                let map = map.0.as_mut().ok_or_else(closed)?;
                return answered(py, &mut answers, &source, &mut LogMap::Native(map));
            }
            answered(py, &mut answers, &source, &mut LogMap::Python { map: log_map, start: 0, data: None })
        })
    }

    fn answered<'py>(
        py: Python<'py>,
        answers: &mut pull_turn::Answers,
        source: &pull_turn::Source,
        log_map: &mut LogMap<'_, 'py>,
    ) -> PyResult<Answered<'py>> {
        let mut size = 0;
        let mut responses = PyBytes::new_with(py, answers.size, |out| {
            size = answers.write(source, log_map, out)?;
            Ok(())
        })?;
        if size < answers.size {
            responses = PyBytes::new(py, &responses.as_bytes()[..size]);
        }
        let answers = answers.answers.iter();
        Ok((
            responses,
            answers.map(|answer| (answer.places.len(), answer.size, answer.last, answer.store_ms)).collect(),
        ))
    }

    fn tags_codes(codes: &Bound<'_, PyAny>) -> PyResult<pull::Codes> {
        let mut numbers = Vec::new();
        for code in codes.try_iter()? {
            match code?.extract::<i64>() {
                Ok(number) => numbers.push(number),
                Err(error) if error.is_instance_of::<PyOverflowError>(codes.py()) => (), // no entry has this code
                Err(error) => return Err(error),
            }
        }
        Ok(pull::Codes::new(numbers))
    }

    /// Return the body with the records at `places`; None unless all of them are in memory and valid.
    fn gather<'py>(
        log_map: &Bound<'py, PyAny>,
        places: &[pull::Place],
        base: i64,
        span: Range<usize>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        #[cfg(target_os = "linux")]
        if let Ok(map) = log_map.cast_exact::<FileMap>() {
            let mut map = map.try_borrow_mut()?;
            let map = map.0.as_mut().ok_or_else(closed)?;
            return if map.load(span) { join(log_map.py(), places, base, map) } else { Ok(None) };
        }
        if !log_map.call_method1("load", (span.start, span.end))?.is_truthy()? {
            return Ok(None);
        }
        let data = log_map.get_item(PySlice::new(log_map.py(), span.start as isize, span.end as isize, 1))?;
        let data = data.cast::<PyBytes>()?;
        join(log_map.py(), places, base, &pull::Copied { start: span.start, data: data.as_bytes() })
    }

    /// Return the body with records that are far from each other; None if the map is one of Python, where preads cost less.
    #[allow(unused_variables)] // other systems have no maps
    fn gather_far<'py>(
        log_map: &Bound<'py, PyAny>,
        places: &[pull::Place],
        base: i64,
        size: usize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        #[cfg(target_os = "linux")]
        if let Ok(map) = log_map.cast_exact::<FileMap>() {
            let mut map = map.try_borrow_mut()?;
            let map = map.0.as_mut().ok_or_else(closed)?;
            let body = pull::gather_far(places, base, size, |range, body| {
                let (start, stop) = (range.start, body.len());
                body.resize(stop + range.len(), 0);
                map.load(range) && map.copy(start, &mut body[stop..])
            });
            return Ok(body.map(|body| PyBytes::new(log_map.py(), &body)));
        }
        Ok(None)
    }

    fn join<'py>(
        py: Python<'py>,
        places: &[pull::Place],
        base: i64,
        bytes: &impl LoadedBytes,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(size) = pull::verified_size(places, base, bytes) else { return Ok(None) };
        let mut is_whole = false;
        let body = PyBytes::new_with(py, size, |body| {
            is_whole = pull::gather(places, base, bytes, body).is_some();
            Ok(())
        })?;
        Ok(is_whole.then_some(body))
    }

    /// Return the number of items of `item_size` bytes whose first has this number.
    fn whole(name: &str, size: usize, item_size: usize, number: i32) -> PyResult<usize> {
        let count = size / item_size;
        let has_numbers = i32::try_from(count).is_ok_and(|count| number >= 1 && number.checked_add(count).is_some());
        if size % item_size == 0 && has_numbers {
            return Ok(count);
        }
        let text = format!("Invalid {name} of {size} bytes from number {number}: expected {item_size} bytes each");
        Err(PyValueError::new_err(text))
    }

    /// Slots of an index file. The interface is that of `ariane.kernels.index_slots.IndexSlots`.
    #[pyclass]
    struct IndexSlots(slots::IndexSlots);

    #[pymethods]
    impl IndexSlots {
        #[new]
        fn new(count: usize) -> PyResult<Self> {
            let table =
                slots::IndexSlots::new(count).map_err(|_| format!("No memory for {count} slots of an index file"));
            Ok(Self(table.map_err(PyMemoryError::new_err)?))
        }

        fn newest(&self, slot: usize) -> PyResult<i32> {
            self.0.newest(slot).ok_or_else(|| PyIndexError::new_err(format!("Invalid slot {slot} of an index file")))
        }

        /// Return `(entries, slots_used)`.
        fn link<'py>(
            &mut self,
            py: Python<'py>,
            keys: &[u8],
            seconds: Vec<(usize, i32)>,
            number: i32,
        ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
            let timed = seconds.iter().fold(0, |sum: usize, (keys, _)| sum.saturating_add(*keys));
            if timed != whole("keys", keys.len(), slots::KEY_SIZE, number)? {
                let text = format!("Invalid seconds of {timed} keys: expected those of {} bytes of keys", keys.len());
                return Err(PyValueError::new_err(text));
            }
            guarded(|| {
                let (entries, slots_used) = self.0.link(keys, &seconds, number);
                Ok((PyBytes::new(py, &entries), slots_used))
            })
        }

        /// Return `(length, slots_used, last_offset)`.
        fn continue_chains(
            &mut self,
            entries: &[u8],
            number: i32,
            bounds: (i64, i64, bool),
        ) -> PyResult<(usize, usize, i64)> {
            let (last_offset, offset_end, allows_zeros) = bounds;
            whole("entries", entries.len(), slots::ENTRY_SIZE, number)?;
            guarded(|| {
                let bounds = slots::EntryBounds { last_offset, offset_end, allows_zeros };
                let continued = self.0.continue_chains(entries, number, bounds);
                Ok((continued.length, continued.slots_used, continued.last_offset))
            })
        }

        fn load(&mut self, position: usize, data: &[u8]) -> PyResult<()> {
            if self.0.load(position, data) {
                return Ok(());
            }
            let text = format!("Invalid {} bytes at {position}: expected whole slots inside the table", data.len());
            Err(PyValueError::new_err(text))
        }

        fn dump<'py>(&self, py: Python<'py>, position: usize, size: usize) -> Bound<'py, PyBytes> {
            PyBytes::new(py, self.0.dump(position, size))
        }
    }

    fn to_python<'py>(py: Python<'py>, run: &Run) -> PyResult<Bound<'py, PyTuple>> {
        let topics: Vec<_> = run.topics.iter().map(|topic| PyString::new(py, &topic.name)).collect();
        let queues = PyList::empty(py);
        for queue in &run.queues {
            let entries = PyBytes::new(py, &queue.entries);
            queues.append((&topics[queue.topic], queue.queue_id, entries, queue.sends, queue.size))?;
        }
        let (records, keys) = (PyBytes::new(py, &run.records), PyBytes::new(py, &run.keys));
        (run.position, run.sends, records, queues, keys, PyBytes::new(py, &run.responses)).into_pyobject(py)
    }

    /// Return `(starts, size, may_have_replacement)` of the adjacent records at the start of `data`.
    #[pyfunction]
    fn find_chain<'py>(
        py: Python<'py>,
        data: &[u8],
        offset: i64,
        limit: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, usize, bool)> {
        guarded(|| {
            let chain = layout::find_chain(data, offset, limit);
            Ok((pack_starts(py, &chain.starts), chain.size, chain.may_have_replacement))
        })
    }

    /// Return the records at `position` of `data` with what is derived from them, or None.
    #[pyfunction]
    fn scan_records<'py>(
        py: Python<'py>,
        data: &[u8],
        position: usize,
        place: (i64, i64, usize),
        check_crc: bool,
        hash_keys: bool,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let (offset, room, until) = place;
        let data = data.get(position..).ok_or_else(|| {
            PyValueError::new_err(format!("Invalid position {position}: expected one within {} bytes", data.len()))
        })?;
        guarded(|| {
            let Some(run) = scan::scan(data, &scan::Place { offset, room, until }, check_crc, hash_keys) else {
                return Ok(None);
            };
            let times = (run.times.first, run.times.last, run.times.floor, run.times.decreases);
            let queues = PyList::empty(py);
            for queue in &run.queues {
                let topic = PyBytes::new(py, queue.topic);
                let entries = PyBytes::new(py, &queue.entries);
                queues.append((topic, queue.queue_id, queue.first, queue.is_consecutive, entries))?;
            }
            let keys = PyBytes::new(py, &run.keys);
            let decided = (run.deliveries, run.commits, run.rollbacks);
            (run.size, run.count, times, queues, keys, run.key_times, decided.0, decided.1, decided.2)
                .into_pyobject(py)
                .map(Some)
        })
    }

    /// Return the starts of the records that `data` consists of, or None.
    #[pyfunction]
    fn find_all<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        guarded(|| Ok(layout::find_all(data).map(|starts| pack_starts(py, &starts))))
    }

    fn pack_starts<'py>(py: Python<'py>, starts: &[usize]) -> Bound<'py, PyBytes> {
        let packed: Vec<u8> = starts.iter().flat_map(|start| (*start as i64).to_ne_bytes()).collect();
        PyBytes::new(py, &packed)
    }

    fn unpack_starts(starts: &[u8]) -> PyResult<Vec<usize>> {
        let invalid = || PyValueError::new_err("Invalid starts: expected 8 bytes for each, a non-negative integer");
        if starts.len() % 8 > 0 {
            return Err(invalid());
        }
        let numbers = starts.chunks_exact(8).map(|chunk| i64::from_ne_bytes(chunk.try_into().unwrap_or_default()));
        numbers.map(|number| usize::try_from(number).map_err(|_| invalid())).collect()
    }

    /// Decodes records to columns. The interface is that of `ariane.kernels.native_records.NativeRecords`.
    #[pyclass]
    struct ColumnDecoder(columns::ColumnDecoder);

    #[pymethods]
    impl ColumnDecoder {
        #[new]
        fn new(columns: Vec<String>) -> PyResult<Self> {
            let decoder = columns::ColumnDecoder::new(&columns).map_err(|column| {
                PyValueError::new_err(format!("Invalid column {column:?}: expected one of a record"))
            })?;
            Ok(Self(decoder))
        }

        /// Return `([(nulls, [buffer])], has_compressed, [(row, is_torn)])`, or None.
        fn decode<'py>(
            &mut self,
            py: Python<'py>,
            data: &[u8],
            starts: &[u8],
            checks_bodies: bool,
        ) -> PyResult<Option<Bound<'py, PyTuple>>> {
            let starts = unpack_starts(starts)?;
            guarded(|| {
                let Some(findings) = self.0.decode(data, &starts, checks_bodies) else { return Ok(None) };
                let decoded = PyList::empty(py);
                for (column, is_map) in self.0.columns() {
                    decoded.append((column.nulls, buffers(py, column, is_map)?))?;
                }
                let faults: Vec<_> = findings.faults.iter().map(|(row, fault)| (*row, *fault == Fault::Torn)).collect();
                (decoded, findings.has_compressed, faults).into_pyobject(py).map(Some)
            })
        }
    }

    fn buffers<'py>(py: Python<'py>, column: &Column, is_map: bool) -> PyResult<Bound<'py, PyList>> {
        let bytes = |buffer: &Vec<u8>| PyBytes::new(py, buffer);
        if is_map {
            let (names, values) = (&column.names, &column.values);
            let buffers = [&column.texts.offsets, &names.offsets, &names.data, &values.offsets, &values.data];
            return PyList::new(py, buffers.map(bytes));
        }
        let validity = (column.nulls > 0).then(|| bytes(&column.validity));
        let offsets = (column.texts.offsets.len() > 4).then(|| bytes(&column.texts.offsets));
        let buffers = PyList::new(py, [validity])?;
        if let Some(offsets) = offsets {
            buffers.append(offsets)?;
        }
        buffers.append(bytes(&column.texts.data))?;
        Ok(buffers)
    }
}
