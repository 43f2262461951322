//! Further API servers on the same etcd, as in a control plane of several machines.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::PoisonError;

use super::{Cluster, ReservedPort};
use crate::assets::Program;
use crate::audit::AuditLog;
use crate::{Error, Result};

/// The program whose flags further API servers have.
const FIRST: &str = "kube-apiserver";

impl Cluster {
    /// Starts another API server with the flags of the first one, except those that start with one of `without`. Returns
    /// when it is ready. It listens on every address of this machine, and its process is called `kube-apiserver-PORT`.
    /// The returned address is not a loopback address, because the API refuses those in EndpointSlices.
    pub async fn add_api_server(&self, without: &[&str]) -> Result<SocketAddr> {
        let number = self.start_another(without, &[]).await?;
        Ok(SocketAddr::new(own_address()?, number))
    }

    /// Starts another API server that pods on the node reach: at the address that is returned, for which it has a
    /// certificate. There is no kube-proxy on the node, so that pods must be told that address.
    pub async fn add_api_server_for_pods(&self) -> Result<SocketAddr> {
        let node = self.node().ok_or_else(|| Error::NoNode("the cluster was started without one".to_owned()))?;
        let address = node.gateway();
        let names = [address.to_string(), "127.0.0.1".to_owned()];
        let certificate = self.authority.server(&names.each_ref().map(String::as_str))?;
        let (certificate, key) = certificate.write(&self.folder, "apiserver-for-pods")?;
        let files =
            [format!("--tls-cert-file={}", certificate.display()), format!("--tls-private-key-file={}", key.display())];
        let number = self.start_another(&["--tls-cert-file=", "--tls-private-key-file="], &files).await?;
        Ok(SocketAddr::new(address.into(), number))
    }

    /// Reads the calls that reached a further API server.
    pub fn audit_of(&self, server: SocketAddr) -> Result<AuditLog> {
        AuditLog::read(&self.audit_file(server.port()))
    }

    fn audit_file(&self, port: u16) -> PathBuf {
        self.folder.join(format!("audit-{port}.log"))
    }

    /// Starts another API server on every address of this machine, and returns its port when it is ready.
    async fn start_another(&self, without: &[&str], with: &[String]) -> Result<u16> {
        let port = ReservedPort::new()?;
        let number = port.number;
        self.more_ports.lock().unwrap_or_else(PoisonError::into_inner).push(port);
        let commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (_, flags) = commands.get(FIRST).ok_or_else(|| Error::NeverStarted(FIRST.to_owned()))?;
        let own = ["--bind-address=", "--secure-port=", "--audit-log-path="];
        let is_kept = |flag: &&String| !own.iter().chain(without).any(|prefix| flag.starts_with(prefix));
        let mut flags: Vec<String> = flags.iter().filter(is_kept).chain(with).cloned().collect();
        flags.push("--bind-address=0.0.0.0".to_owned());
        flags.push(format!("--secure-port={number}"));
        flags.push(format!("--audit-log-path={}", self.audit_file(number).display()));
        self.spawn(&format!("{FIRST}-{number}"), &self.program(Program::ApiServer)?, &flags)?;
        self.await_ready_at(&format!("https://127.0.0.1:{number}")).await?;
        Ok(number)
    }
}

/// The address from which this machine reaches others. Nothing is sent.
fn own_address() -> Result<IpAddr> {
    let find = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // Reserved for documentation; any address behind the default route will do.
        socket.connect((Ipv4Addr::new(203, 0, 113, 1), 9))?;
        Ok(socket.local_addr()?.ip())
    };
    find().map_err(Error::Port)
}
