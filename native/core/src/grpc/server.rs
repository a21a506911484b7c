//! The thread of the port: accepts connections, decides by the first byte whether they are encrypted, and passes answers on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{TcpListener as StdListener, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{spawn_local, AbortHandle, LocalSet};
use tokio::time::{interval, sleep, timeout, MissedTickBehavior};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::TlsAcceptor;

use super::calls::Calls;
use super::connection::{serve, ConnectionState, HELD_MAX};
use super::plain_message::ReservedNames;
use super::socket::Socket;
use super::turns::{Answer, CallId, ConnectionId, Event, Inbox, Outbox};

const HANDSHAKE_BYTE: u8 = 0x16; // first byte of a TLS connection
const FIRST_BYTE_S: u64 = 30;
const HANDSHAKE_S: u64 = 10;
const CALLS_MAX: usize = 65_536; // that are not answered, of all connections
const IDLE: Duration = Duration::from_secs(120); // without a call; a Telemetry stream is one
const LEAVE: Duration = Duration::from_secs(10); // until a connection that was sent GOAWAY is closed
const UNREAD: Duration = Duration::from_secs(60); // for which a client may leave its responses unread
const SCAN: Duration = Duration::from_secs(1);

/// Which connections are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    Disabled,
    Permissive,
    Enforcing,
}

/// What does not change while the port is open.
#[derive(Debug)]
pub struct Settings {
    pub methods: BTreeSet<String>,
    pub tls_mode: TlsMode,
    pub takes_plain_calls: bool,
    pub reserved: Arc<ReservedNames>,
}

/// What the tasks of the thread share.
pub struct Server {
    pub settings: Settings,
    pub inbox: Arc<Inbox>,
    pub calls: Rc<Calls>,
    pub held: Rc<Cell<usize>>, // bytes of requests that are not answered
    was_full: Cell<bool>,      // since connections were resumed
    connections: RefCell<BTreeMap<ConnectionId, (Rc<ConnectionState>, AbortHandle)>>,
    last_call: Cell<CallId>,
    tls: RefCell<Option<Arc<ServerConfig>>>, // None until Python has a certificate
    tls_changed: Notify,
}

impl Server {
    pub fn next_call(&self) -> CallId {
        self.last_call.set(self.last_call.get() + 1);
        self.last_call.get()
    }

    /// Return whether no connection may accept another call.
    pub fn is_full(&self) -> bool {
        let is_full = self.calls.count() >= CALLS_MAX || self.held.get() >= HELD_MAX;
        self.was_full.set(self.was_full.get() || is_full);
        is_full
    }

    /// Return the certificate, which Python creates when it is first needed.
    async fn tls(&self) -> Arc<ServerConfig> {
        loop {
            let changed = self.tls_changed.notified();
            if let Some(config) = &*self.tls.borrow() {
                return Arc::clone(config);
            }
            self.inbox.add_event(Event::TlsNeeded);
            changed.await;
        }
    }

    /// Open a connection, and serve it until it ends.
    async fn run(self: Rc<Self>, stream: TcpStream, state: Rc<ConnectionState>) -> Result<(), String> {
        let mut first = [0];
        let peeked = timeout(Duration::from_secs(FIRST_BYTE_S), stream.peek(&mut first));
        match peeked.await {
            Err(_) => return Err(format!("no data arrived within {FIRST_BYTE_S} s")),
            Ok(Err(_) | Ok(0)) => return Ok(()),
            Ok(Ok(_)) => {}
        }
        let stalled_since = Rc::clone(&state.stalled_since);
        let socket = match (first[0] == HANDSHAKE_BYTE, self.settings.tls_mode) {
            (true, TlsMode::Disabled) => return Err("it is encrypted, and tls.server.mode is disabled".to_owned()),
            (false, TlsMode::Enforcing) => {
                return Err("it is not encrypted, and tls.server.mode is enforcing".to_owned())
            }
            (false, _) => Socket::plain(stream, stalled_since),
            (true, _) => {
                let handshake = async { TlsAcceptor::from(self.tls().await).accept(stream).await };
                match timeout(Duration::from_secs(HANDSHAKE_S), handshake).await {
                    Err(_) => return Err(format!("its TLS handshake did not end within {HANDSHAKE_S} s")),
                    Ok(Err(error)) => return Err(format!("TLS: {error}")),
                    Ok(Ok(stream)) => Socket::encrypted(stream, stalled_since),
                }
            }
        };
        serve(socket, state, self).await
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        let mut last = 0;
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                sleep(Duration::from_millis(100)).await; // no descriptors are left
                continue;
            };
            let _ = stream.set_nodelay(true);
            last += 1;
            self.inbox.add_event(Event::Opened { connection: last, peer });
            let state = Rc::new(ConnectionState::new(last, Rc::clone(&self.held)));
            let guard = Registered { id: last, server: Rc::clone(&self), reason: String::new() };
            let task = spawn_local(Self::run_registered(guard, stream, Rc::clone(&state)));
            self.connections.borrow_mut().insert(last, (state, task.abort_handle()));
        }
    }

    async fn run_registered(mut guard: Registered, stream: TcpStream, state: Rc<ConnectionState>) {
        if let Err(reason) = Rc::clone(&guard.server).run(stream, state).await {
            guard.reason = reason;
        }
    }

    /// End connections that are idle, or whose peers do not read.
    fn scan(&self, now: Instant) {
        for (state, task) in self.connections.borrow().values() {
            let idle = now.saturating_duration_since(state.last_active.get());
            let is_unread =
                state.stalled_since.get().is_some_and(|since| now.saturating_duration_since(since) >= UNREAD);
            let is_idle = state.open_calls.get() == 0 && idle >= IDLE;
            if is_unread || (is_idle && idle >= IDLE + LEAVE) {
                task.abort();
            } else if is_idle && !state.is_leaving.replace(true) {
                state.changed.notify_one();
            }
        }
    }

    /// Let connections that were stopped by `is_full` go on.
    fn resume_if_stopped(&self) {
        if self.was_full.replace(false) && !self.is_full() {
            for (state, _) in self.connections.borrow().values() {
                state.changed.notify_one();
            }
        }
    }

    /// Serve until Python stops the port.
    async fn run_all(self: Rc<Self>, listener: StdListener, outbox: Arc<Outbox>) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        spawn_local(Rc::clone(&self).accept(listener));
        let server = Rc::clone(&self);
        spawn_local(async move {
            let mut ticks = interval(SCAN);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                server.scan(Instant::now());
                server.resume_if_stopped();
            }
        });
        loop {
            for answer in outbox.received().await {
                match answer {
                    Answer::Stop => return Ok(()),
                    Answer::Tls(config) => {
                        *self.tls.borrow_mut() = Some(config);
                        self.tls_changed.notify_waiters();
                    }
                    Answer::Abort { connection } => {
                        if let Some((_, task)) = self.connections.borrow().get(&connection) {
                            task.abort();
                        }
                    }
                    answer => self.calls.answer(answer),
                }
            }
            self.resume_if_stopped();
        }
    }
}

/// A connection that is open; the event of its end is sent when it is dropped.
struct Registered {
    id: ConnectionId,
    server: Rc<Server>,
    reason: String, // empty if the peer has closed the connection
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.server.connections.borrow_mut().remove(&self.id);
        let reason = std::mem::take(&mut self.reason);
        self.server.inbox.add_event(Event::Closed { connection: self.id, reason });
    }
}

/// The port, as Python holds it.
pub struct Port {
    pub number: u16,
    pub inbox: Arc<Inbox>,
    pub outbox: Arc<Outbox>,
    pub reserved: Arc<ReservedNames>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Listen, and start the thread.
    pub fn open(address: &str, number: u16, settings: Settings) -> io::Result<Self> {
        let addresses: Vec<_> = (address, number).to_socket_addrs()?.collect();
        let listener = StdListener::bind(&addresses[..])?;
        listener.set_nonblocking(true)?;
        let number = listener.local_addr()?.port();
        let (inbox, outbox) = (Arc::new(Inbox::new()?), Arc::new(Outbox::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let reserved = Arc::clone(&settings.reserved);
        let (thread_inbox, thread_outbox) = (Arc::clone(&inbox), Arc::clone(&outbox));
        let thread = Builder::new().name("ariane-grpc".to_owned()).spawn(move || {
            let server = Rc::new(Server {
                settings,
                inbox: thread_inbox,
                calls: Rc::default(),
                held: Rc::default(),
                was_full: Cell::new(false),
                connections: RefCell::default(),
                last_call: Cell::new(0),
                tls: RefCell::default(),
                tls_changed: Notify::new(),
            });
            let tasks = LocalSet::new();
            let _ = tasks.block_on(&runtime, server.run_all(listener, thread_outbox));
        })?;
        Ok(Self { number, inbox, outbox, reserved, thread: Some(thread) })
    }

    /// Close all connections, and wait until the thread has ended.
    pub fn close(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.outbox.add(Answer::Stop);
            self.outbox.send();
            let _ = thread.join();
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.close();
    }
}
