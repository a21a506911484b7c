//! Native core of Ariane: the same results as `ariane.kernels`, from the same values.
//!
//! The modules know nothing of Python; this file holds all of the binding. Bytes are borrowed from the caller for one call,
//! and the results are new objects. `None` and a stop mean "the slow path decides"; ValueError and TypeError mean that the
//! caller is wrong; a panic becomes a RuntimeError, which never happens unless this crate has a bug.

#![forbid(unsafe_code)]

pub mod batch;
pub mod header;
pub mod index;
pub mod json;
pub mod properties;
pub mod record;
pub mod response;
pub mod run;
pub mod turn;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod ariane_native {
    use std::collections::HashSet;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    use pyo3::exceptions::{PyRuntimeError, PyValueError};
    use pyo3::prelude::*;
    use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

    use crate::record::Host;
    use crate::run::Run;
    use crate::turn;

    /// Version of the interface to `ariane.kernels`, which must expect this one.
    #[pymodule_export]
    const INTERFACE_VERSION: u32 = 1;

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

    /// Encodes runs of plain sends. The interface is that of `ariane.kernels.send_turn.SendEncoder`.
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
}
