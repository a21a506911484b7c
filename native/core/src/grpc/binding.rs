//! The port as a class of Python. [`ariane.proxy.native_transport`]

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::ServerConfig;

use super::calls::framed;
use super::messages::Resource;
use super::plain_acks::{AckBatch, Delivery};
use super::plain_message::ReservedNames;
use super::plain_sends::{FailedSend, Queues, SendBatch};
use super::received::{self, Part, Received, Reception};
use super::send_traces::{SendTraces, TraceFields};
use super::server::{Port, Settings, TlsMode};
use super::turns::{Answer, Call, Event};

/// An open gRPC port. Answers are passed on by `send`.
#[pyclass]
pub struct GrpcPort(Port);

#[pymethods]
impl GrpcPort {
    /// Listen. Raise OSError if the port is in use.
    #[new]
    #[pyo3(signature = (address, port, *, methods, tls_mode, takes_plain_calls, reserved))]
    fn new(
        address: &str,
        port: u16,
        methods: BTreeSet<String>,
        tls_mode: &str,
        takes_plain_calls: bool,
        reserved: (BTreeSet<String>, Vec<String>),
    ) -> PyResult<Self> {
        let tls_mode = match tls_mode {
            "disabled" => TlsMode::Disabled,
            "permissive" => TlsMode::Permissive,
            "enforcing" => TlsMode::Enforcing,
            other => return Err(PyValueError::new_err(format!("Invalid mode of TLS {other:?}"))),
        };
        let (names, prefixes) = reserved;
        let reserved = Arc::new(ReservedNames { names, prefixes });
        let settings = Settings { methods, tls_mode, takes_plain_calls, reserved };
        Ok(Self(Port::open(address, port, settings)?))
    }

    #[getter]
    fn port(&self) -> u16 {
        self.0.number
    }

    /// Return the descriptor that is readable while there are events.
    fn fileno(&self) -> i32 {
        self.0.inbox.descriptor()
    }

    /// Return the events since the last call, as tuples whose first item is their kind, the plain sends and the plain acks.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, Vec<PlainSends>, Vec<PlainAcks>)> {
        let turn = self.0.inbox.take();
        let now = Instant::now();
        let events = PyList::empty(py);
        for event in turn.events {
            events.append(event_tuple(py, event, now)?)?;
        }
        let sends = SendBatch::of_clients(turn.sends).into_iter().map(PlainSends);
        let acks = AckBatch::of_clients(turn.acks).into_iter().map(PlainAcks);
        Ok((events, sends.collect(), acks.collect()))
    }

    /// End a call with its only message.
    fn reply(&self, call: u64, message: &[u8]) {
        self.0.outbox.add(Answer::Reply { call, framed: framed(message) });
    }

    /// Add a message to the answer of a streaming call; with `wants_room`, an event follows once it is written.
    fn message(&self, call: u64, message: &[u8], wants_room: bool) {
        self.0.outbox.add(Answer::Message { call, framed: framed(message), wants_room });
    }

    /// The same with several messages that have their prefixes.
    fn messages(&self, call: u64, framed: &[u8], wants_room: bool) {
        self.0.outbox.add(Answer::Message { call, framed: Bytes::copy_from_slice(framed), wants_room });
    }

    /// Return the messages of a receive call in parts, each with what it contains; None if one of them is unusual.
    fn encode_received<'py>(
        &self,
        py: Python<'py>,
        records: &[u8],
        reception: ReceptionFields,
    ) -> Option<Vec<(Bound<'py, PyBytes>, Vec<ReceivedFields>)>> {
        let parts = received::encode(records, &reception_of(reception), &self.0.reserved)?;
        Some(parts.into_iter().map(|part| (PyBytes::new(py, &part.framed), received_of(part))).collect())
    }

    /// End a call with a status of gRPC.
    fn end(&self, call: u64, code: u32, text: String) {
        self.0.outbox.add(Answer::End { call, code, text });
    }

    /// Read the next message of a Telemetry stream.
    fn read(&self, call: u64) {
        self.0.outbox.add(Answer::Read { call });
    }

    /// Close a connection at once.
    fn abort(&self, connection: u64) {
        self.0.outbox.add(Answer::Abort { connection });
    }

    /// Encrypt new connections with a certificate and its key, in PEM. Raise ValueError if they cannot be used.
    fn set_certificate(&self, certificate: &[u8], key: &[u8]) -> PyResult<()> {
        let invalid = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| invalid(&error))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| invalid(&error))?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.map_err(|error| invalid(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        self.0.outbox.add(Answer::Tls(Arc::new(config)));
        Ok(())
    }

    /// Pass the answers on.
    fn send(&self) {
        self.0.outbox.send();
    }

    /// Close the port and all connections.
    fn close(&mut self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

/// [kernels.grpc_port.Reception]
type ReceptionFields =
    (String, String, String, (i64, i64, i32), HashMap<i32, i64>, (Option<i32>, Option<BTreeSet<String>>));

/// [kernels.grpc_port.ReceivedMessage]
type ReceivedFields = (i64, i32, i64, i64, String, String, i32, bool);

fn reception_of(fields: ReceptionFields) -> Reception {
    let (resource_namespace, name, broker, delivery, starts, (attempts_max, tags)) = fields;
    let (taken_ms, invisible_ms, revive_queue) = delivery;
    let topic = Resource { resource_namespace, name };
    Reception { topic, broker, taken_ms, invisible_ms, revive_queue, starts, attempts_max, tags }
}

fn received_of(part: Part) -> Vec<ReceivedFields> {
    let fields = part.messages.into_iter().map(|each| {
        let Received { start, queue_id, offset, log_offset, message_id, keys, reconsume_times, is_traced } = each;
        (start, queue_id, offset, log_offset, message_id, keys, reconsume_times, is_traced)
    });
    fields.collect()
}

fn event_tuple<'py>(py: Python<'py>, event: Event, now: Instant) -> PyResult<Bound<'py, PyTuple>> {
    match event {
        Event::Call(call) => call_tuple(py, &call, now),
        Event::Opened { connection, peer } => {
            ("opened", connection, peer.ip().to_string(), peer.port()).into_pyobject(py)
        }
        Event::Closed { connection, reason } => ("closed", connection, reason).into_pyobject(py),
        Event::TlsNeeded => ("tls_needed",).into_pyobject(py),
        Event::Message { call, data } => ("message", call, PyBytes::new(py, &data)).into_pyobject(py),
        Event::Ended { call } => ("ended", call).into_pyobject(py),
        Event::Cancelled { call } => ("cancelled", call).into_pyobject(py),
        Event::Room { call } => ("room", call).into_pyobject(py),
    }
}

/// Return `("call", number, connection, method, headers, data, remaining milliseconds)`.
fn call_tuple<'py>(py: Python<'py>, call: &Call, now: Instant) -> PyResult<Bound<'py, PyTuple>> {
    let remaining_ms = call.deadline.map(|deadline| deadline.saturating_duration_since(now).as_secs_f64() * 1000.0);
    let (headers, data) = (headers_dict(py, &call.headers)?, PyBytes::new(py, &call.data));
    ("call", call.id, call.connection, &call.method, headers, data, remaining_ms).into_pyobject(py)
}

/// Return the headers that are text, without those of HTTP/2 and gRPC.
fn headers_dict<'py>(py: Python<'py>, headers: &HeaderMap) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in headers {
        let name = name.as_str();
        if !name.starts_with("grpc-") && !name.ends_with("-bin") {
            if let Ok(text) = value.to_str() {
                dict.set_item(name, text)?;
            }
        }
    }
    Ok(dict)
}

fn client_id(call: Option<&Call>) -> &str {
    call.and_then(Call::client_id).unwrap_or("")
}

/// [TraceEntry]
type Records<'py> = (Bound<'py, PyBytes>, String, u32);

/// The plain sends of a client in a turn.
#[pyclass]
pub struct PlainSends(SendBatch);

#[pymethods]
impl PlainSends {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn connection(&self) -> u64 {
        self.0.connection
    }

    #[getter]
    fn client_id(&self) -> &str {
        client_id(self.0.first())
    }

    /// Bytes of the requests.
    #[getter]
    fn size(&self) -> usize {
        self.0.size()
    }

    /// Headers of the first call.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        headers_dict(py, self.0.first().map_or(&HeaderMap::new(), |call| &call.headers))
    }

    /// Topics of the sends, each once.
    #[getter]
    fn topics(&self) -> Vec<&str> {
        self.0.topics.iter().map(String::as_str).collect()
    }

    /// Return the frames of sends to topics with queues: the first queue and their number, or None, for each of `topics`.
    fn frames<'py>(&mut self, py: Python<'py>, queues: Vec<Option<Queues>>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.frames(&queues))
    }

    /// Take the send whose frame begins at `position`. Return where its frame ends, and its call as an event.
    fn take_at<'py>(&mut self, py: Python<'py>, position: usize, end: usize) -> PyResult<(usize, Bound<'py, PyTuple>)> {
        let taken = self.0.take_at(position, end);
        let (next, call) = taken.ok_or_else(|| PyValueError::new_err(format!("No frame begins at {position}")))?;
        Ok((next, call_tuple(py, &call, Instant::now())?))
    }

    /// Take the sends whose frames are between two positions, and return their calls.
    fn take_between(&mut self, position: usize, end: usize) -> Vec<u64> {
        self.0.take_between(position, end)
    }

    /// Take the sends that have no frame, as events.
    fn take_rest<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let now = Instant::now();
        self.0.take_rest().iter().map(|call| call_tuple(py, call, now)).collect()
    }

    /// Answer stored sends by the responses of a broker. Return call, code and remark of the others, and trace records.
    fn answer<'py>(
        &mut self,
        py: Python<'py>,
        port: &GrpcPort,
        responses: &[u8],
        traces: Option<TraceFields>,
    ) -> PyResult<(Vec<FailedSend>, Vec<Records<'py>>)> {
        let mut traces = SendTraces::new(traces);
        let failed = self.0.answer(responses, &port.0.outbox, &mut traces);
        let failed = failed.ok_or_else(|| PyValueError::new_err("Invalid responses to plain sends"))?;
        let entries = traces.entries.into_iter();
        Ok((failed, entries.map(|(text, keys, records)| (PyBytes::new(py, &text), keys, records)).collect()))
    }
}

/// [kernels.grpc_port.AckedDelivery]
type AckedDelivery = (String, String, String, i32, i64, bool, Vec<i64>);

/// The plain acknowledgements of a client in a turn.
#[pyclass]
pub struct PlainAcks(AckBatch);

#[pymethods]
impl PlainAcks {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn connection(&self) -> u64 {
        self.0.connection
    }

    /// Headers of the first call.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        headers_dict(py, self.0.first().map_or(&HeaderMap::new(), |call| &call.headers))
    }

    #[getter]
    fn client_id(&self) -> &str {
        client_id(self.0.first())
    }

    /// The deliveries, each once, with the offsets that are acknowledged.
    #[getter]
    fn deliveries(&self) -> Vec<AckedDelivery> {
        let delivery = |(key, offsets): (&Delivery, &Vec<i64>)| {
            let Delivery { group, topic, broker, queue_id, taken_ms, is_ordered } = key.clone();
            (group, topic, broker, queue_id, taken_ms, is_ordered, offsets.clone())
        };
        self.0.deliveries.iter().map(delivery).collect()
    }

    /// Answer all calls: their messages are acknowledged.
    fn answer(&mut self, port: &GrpcPort) {
        self.0.answer(&port.0.outbox);
    }

    /// Take the calls that are not answered, as events.
    fn take_rest<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let now = Instant::now();
        self.0.take_rest().iter().map(|call| call_tuple(py, call, now)).collect()
    }
}
