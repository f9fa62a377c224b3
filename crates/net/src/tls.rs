//! TLS as a client, by rustls: what it trusts, and a connection that may go over to it.
//!
//! Promise: the peer's certificate and name are verified, by the authorities in a file or by the
//! system's; without any there is no TLS, and no error is taken for trust.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::socket::Timed;

/// How a connection to an IMAP server is protected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tls {
    /// From the first byte (`imaps://`).
    Implicit,
    /// By STARTTLS, before anything else is said; a server without it is refused.
    StartTls,
    /// Not at all (`starttls = false`): for loopback and trusted networks.
    None,
}

/// What a connection with TLS needs; the authorities are those in `ca_file` (PEM), or the system's.
/// Of several certificates those that cannot be used are left out; an error is a sentence: the file
/// cannot be read, or that no certificate is left.
pub fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities(ca_file)?);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// The certificates of the authorities, as [`client_config`] has them: at least one.
pub fn authorities(ca_file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut certificates = match ca_file {
        Some(file) => CertificateDer::pem_file_iter(file)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| format!("CA file {}: {error}", file.display()))?,
        // What cannot be read of the system's certificates is not there.
        None => rustls_native_certs::load_native_certs().certs,
    };
    certificates.retain(|one| RootCertStore::empty().add(one.clone()).is_ok());
    if certificates.is_empty() {
        return Err(match ca_file {
            Some(file) => format!("CA file {}: no certificate that can be used", file.display()),
            None => "the system has no root certificates to verify the server with".to_owned(),
        });
    }
    Ok(certificates)
}

/// A connection in clear text, or TLS over it.
pub enum Transport {
    Clear(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
    Closed,
}

impl Transport {
    /// Goes over from clear text to TLS and verifies that the peer is `host`: a name, or an address
    /// with or without brackets.
    pub fn start_tls(self, config: Arc<ClientConfig>, host: &str) -> io::Result<Transport> {
        let Transport::Clear(mut socket) = self else { return Err(closed()) };
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Transport::Tls(Box::new(StreamOwned::new(tls, socket))))
    }

    /// The socket below, unless the connection was closed.
    pub fn socket(&mut self) -> io::Result<&mut Timed> {
        match self {
            Transport::Clear(socket) => Ok(socket),
            Transport::Tls(stream) => Ok(&mut stream.sock),
            Transport::Closed => Err(closed()),
        }
    }
}

impl Read for Transport {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Clear(socket) => socket.read(into),
            Transport::Tls(stream) => stream.read(into),
            Transport::Closed => Err(closed()),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Transport::Clear(socket) => socket.write(bytes),
            Transport::Tls(stream) => stream.write(bytes),
            Transport::Closed => Err(closed()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Transport::Clear(socket) => socket.flush(),
            Transport::Tls(stream) => stream.flush(),
            Transport::Closed => Err(closed()),
        }
    }
}

/// The peer has ended the connection, or we have.
pub fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}
