//! TLS of a connection, with rustls. Any certificate is accepted: a load measures a server, and its messages are no secret.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use crate::connection::Input;

const WIRE_SIZE: usize = 256 * 1024;

/// The encrypted side of a connection.
pub struct TlsSession {
    session: ClientConnection,
    /// What one read of the socket brought.
    wire: Vec<u8>,
}

impl TlsSession {
    /// Shake hands on a socket that blocks.
    pub fn open(stream: &mut TcpStream, broker: &str) -> Result<TlsSession, String> {
        let fault = |error: &dyn std::fmt::Display| format!("no TLS with the broker {broker}: {error}");
        let host = broker.rsplit_once(':').map_or(broker, |(host, _)| host).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(|error| fault(&error))?;
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| fault(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        let mut session = ClientConnection::new(Arc::new(config), name).map_err(|error| fault(&error))?;
        while session.is_handshaking() {
            session.complete_io(stream).map_err(|error| fault(&error))?;
        }
        Ok(TlsSession { session, wire: vec![0; WIRE_SIZE] })
    }

    /// Return protocol and cipher.
    pub fn description(&self) -> String {
        let version = self.session.protocol_version().map(|version| format!("{version:?}"));
        let suite = self.session.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()));
        [version, suite].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Return whether encrypted bytes wait until the socket is writable.
    pub fn is_blocked(&self) -> bool {
        self.session.wants_write()
    }

    /// Write what is encrypted, or else encrypt bytes; return how many of them were taken.
    pub fn write(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<usize> {
        if self.session.wants_write() {
            return self.session.write_tls(stream).map(|_| 0);
        }
        self.session.writer().write(bytes)
    }

    /// Read once, and decrypt all of it; return the number of bytes on the wire, 0 at the end.
    pub fn read(&mut self, stream: &mut TcpStream, input: &mut Input) -> std::io::Result<usize> {
        let size = stream.read(&mut self.wire)?;
        let mut rest = &self.wire[..size];
        while !rest.is_empty() {
            self.session.read_tls(&mut rest)?;
            self.session.process_new_packets().map_err(std::io::Error::other)?;
            loop {
                match input.read_from(&mut self.session.reader()) {
                    Ok(0) => return Ok(0),
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(size)
    }
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
