//! A real node: kubelet, containerd and a pod network. The kubelet comes from the test kit, the rest from
//! Debian packages.
//!
//! The node writes only to the cluster's folder and to its own `/run`, `/var/lib` and `/var/log`, which
//! are in the supervisor's mount namespace. It changes no kernel setting of the machine. The supervisor
//! removes its bridge and the control groups of its containers at the end.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::Api;
use serde_json::json;

use crate::assets::{self, Program};
use crate::cluster::Cluster;
use crate::image::Image;
use crate::kubeconfig::Credentials;
use crate::range::Range;
use crate::supervise::may_isolate;
use crate::wait::until;
use crate::{Error, Result, is_root, make, pki};

/// Limit for each step of the start: containerd answers within a second, a node is Ready in about 6 s.
const START_LIMIT: Duration = Duration::from_secs(90);
const PAUSE_IMAGE: &str = "caretaker.test/pause:1";
/// Folders of the CNI plugins: Debian's, and the one that other distributions use.
const CNI_FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// The folder of containerd's socket and bundles, in the cluster's.
const CONTAINERD_STATE: &str = "containerd-state";
/// The folder of the node's CNI plugins, in the cluster's.
const CNI_PLUGINS: &str = "cni-plugins";

/// A node of a throwaway cluster.
#[derive(Debug)]
pub struct Node {
    name: String,
    socket: PathBuf,
    cni_plugins: PathBuf,
    range: Range,
}

impl Node {
    /// Returns `Ok` if this machine can run a node; else what it lacks, as the reason of a skipped test.
    pub fn possible() -> Result<(), String> {
        runs_as_root_with(&[("ip", "iproute2")])?;
        if cni_folder().is_none() {
            let folders = CNI_FOLDERS.join(" or ");
            return Err(format!(
                "needs the CNI plugins bridge and host-local in {folders} (Debian package containernetworking-plugins)"
            ));
        }
        match assets::missing_in_given_folder(&[Program::Kubelet, Program::ControllerManager, Program::Scheduler]) {
            Some(missing) => Err(format!("needs {missing}")),
            None => Ok(()),
        }
    }

    /// Returns the name of the Node object.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the address is in the range of this node's pods.
    #[must_use]
    pub fn has_address(&self, address: Ipv4Addr) -> bool {
        self.range.contains(address)
    }

    /// Returns the address at which pods reach this machine.
    #[must_use]
    pub fn gateway(&self) -> Ipv4Addr {
        self.range.gateway()
    }

    /// Returns the folder of containerd's socket and bundles, which is `/run/containerd` elsewhere.
    #[must_use]
    pub fn containerd_folder(&self) -> &Path {
        self.socket.parent().unwrap_or(Path::new("/"))
    }

    /// Returns the path of containerd's socket.
    #[must_use]
    pub fn containerd_socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the folder of the node's CNI plugins: links to those of the machine. A test may replace one by a program of
    /// its own; pods use `bridge`, which calls `host-local`.
    #[must_use]
    pub fn cni_plugins(&self) -> &Path {
        &self.cni_plugins
    }
}

impl Cluster {
    /// Brings an image into the node's containerd, from an archive.
    pub fn import_image(&self, archive: &Path) -> Result<()> {
        let node = self.node().ok_or_else(|| Error::NoNode("the cluster was started without one".to_owned()))?;
        ctr(self, node, &["images", "import", &archive.to_string_lossy()])
    }

    /// Runs `ctr` on the node, in the namespace of the kubelet's containers.
    pub fn ctr(&self, words: &[&str]) -> Result<()> {
        let node = self.node().ok_or_else(|| Error::NoNode("the cluster was started without one".to_owned()))?;
        ctr(self, node, words)
    }
}

/// Runs `ctr` in the namespace of the kubelet's containers.
fn ctr(cluster: &Cluster, node: &Node, words: &[&str]) -> Result<()> {
    let mut args = vec!["--connect-timeout", "1s", "--address", node.socket.to_str().expect("a UTF-8 path")];
    args.extend(["--namespace", "k8s.io"]);
    args.extend(words);
    cluster.supervisor().run("ctr", args)
}

/// Returns `Ok` for root on a machine with the programs of containerd, with these further programs, each with its Debian
/// package, and with the right to create namespaces; else what the machine lacks.
pub(crate) fn runs_as_root_with(programs: &[(&str, &str)]) -> Result<(), String> {
    if !is_root() {
        return Err("needs root".to_owned());
    }
    let of_containerd = [
        ("unshare", "util-linux"),
        ("mount", "mount"),
        ("containerd", "containerd"),
        ("ctr", "containerd"),
        ("runc", "runc"),
        ("busybox", "busybox-static"),
    ];
    for (file, package) in of_containerd.iter().chain(programs) {
        if find_program(file).is_none() {
            return Err(format!("needs {file} (Debian package {package})"));
        }
    }
    if may_isolate() { Ok(()) } else { Err("needs CAP_SYS_ADMIN (unshare failed)".to_owned()) }
}

/// Returns the path of a program, searched in `PATH`, `/usr/sbin` and `/sbin`.
#[must_use]
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|f| f.join(program)).find(|p| p.is_file())
}

pub(crate) fn require_program(program: &str) -> Result<PathBuf> {
    find_program(program).ok_or_else(|| Error::NoNode(format!("needs {program}")))
}

/// Returns the folder that contains the required CNI plugins.
fn cni_folder() -> Option<&'static str> {
    CNI_FOLDERS.into_iter().find(|folder| ["bridge", "host-local"].iter().all(|p| Path::new(folder).join(p).is_file()))
}

/// Starts a node in a running cluster, and returns when it is Ready.
pub(crate) async fn start(cluster: &Cluster) -> Result<Node> {
    // The random suffix of the folder is unique among running clusters, and short enough for the name of
    // a network interface.
    let id = cluster.folder().to_string_lossy().rsplit('-').next().unwrap_or_default().to_lowercase();
    let bridge = format!("ctk{id}");

    let supervisor = cluster.supervisor();
    supervisor.owns_link(&bridge)?;
    supervisor
        .owns_cgroups_of(&cluster.folder().join(CONTAINERD_STATE).join("io.containerd.runtime.v2.task/k8s.io"))?;
    for folder in ["/run", "/var/lib", "/var/log"] {
        supervisor.run("mount", ["-t", "tmpfs", "tmpfs", folder])?;
    }
    mask_sysctls(cluster)?;
    let range = Range::claim(supervisor, &bridge)?;
    let state = cluster.folder().join(CONTAINERD_STATE);
    std::fs::create_dir_all(&state).map_err(Error::file(&state))?;
    // What a container mounts there reaches the node, as on a node whose systemd has made all mounts shared.
    supervisor.run("mount", ["--bind", "--make-rshared", &state.to_string_lossy(), &state.to_string_lossy()])?;
    let (socket, cni_plugins) = (state.join("containerd.sock"), cluster.folder().join(CNI_PLUGINS));
    let node = Node { name: format!("node-{id}"), socket, cni_plugins, range };
    start_containerd(cluster, &node, &bridge).await?;
    start_kubelet(cluster, &node).await?;
    Ok(node)
}

/// Mounts files with the expected values over kernel settings, inside the cluster's mount namespace.
/// Without them the kubelet and the bridge plugin would change these settings for the whole machine.
fn mask_sysctls(cluster: &Cluster) -> Result<()> {
    for (setting, value) in [
        ("vm/overcommit_memory", "1"),
        ("vm/panic_on_oom", "0"),
        ("kernel/panic", "10"),
        ("kernel/panic_on_oops", "1"),
        ("kernel/keys/root_maxkeys", "1000000"),
        ("kernel/keys/root_maxbytes", "25000000"),
        ("net/ipv4/ip_forward", "1"),
    ] {
        let file = pki::write(cluster.folder(), &format!("sysctl-{}", setting.replace('/', "-")), value)?;
        let path = format!("/proc/sys/{setting}");
        if Path::new(&path).exists() {
            cluster.supervisor().run("mount", ["--bind", &file.to_string_lossy(), &path])?;
        }
    }
    Ok(())
}

/// Links the CNI plugins of the machine into a folder.
fn link_cni_plugins(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
    let installed = Path::new(cni_folder().unwrap_or(CNI_FOLDERS[0]));
    for plugin in std::fs::read_dir(installed).map_err(Error::file(installed))? {
        let plugin = plugin.map_err(Error::file(installed))?;
        let link = folder.join(plugin.file_name());
        std::os::unix::fs::symlink(plugin.path(), &link).map_err(Error::file(&link))?;
    }
    Ok(())
}

async fn start_containerd(cluster: &Cluster, node: &Node, bridge: &str) -> Result<()> {
    let folder = cluster.folder();
    link_cni_plugins(&node.cni_plugins)?;
    let cni = folder.join("cni");
    std::fs::create_dir_all(&cni).map_err(Error::file(&cni))?;
    pki::write(&cni, "10-bridge.conflist", &cni_config(bridge, node.range))?;
    let config = pki::write(folder, "containerd.toml", &containerd_config(folder, node))?;
    let args = ["--config".to_owned(), config.display().to_string()];
    cluster.spawn("containerd", &require_program("containerd")?, &args)?;

    until("containerd to answer", START_LIMIT, async || {
        cluster.check_processes()?;
        // Connect first: ctr waits for a missing socket, and would hide that containerd has exited.
        if tokio::net::UnixStream::connect(&node.socket).await.is_err() {
            return Ok(Err("no process listens on its socket".to_owned()));
        }
        Ok(ctr(cluster, node, &["--timeout", "1s", "version"]).map_err(|e| e.to_string()))
    })
    .await?;

    let busybox = require_program("busybox")?;
    // The trap ends the shell at SIGTERM, which process 1 of a container ignores by default.
    let forever = ["sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"];
    for (image, file) in [(PAUSE_IMAGE, "pause.tar"), (make::IMAGE, "busybox.tar")] {
        let archive = Image::busybox(image, &busybox, &forever).write(&folder.join(file))?;
        ctr(cluster, node, &["images", "import", archive.to_str().expect("a UTF-8 path")])?;
    }
    Ok(())
}

async fn start_kubelet(cluster: &Cluster, node: &Node) -> Result<()> {
    let folder = cluster.folder();
    let identity = cluster.identity(&format!("system:node:{}", node.name), "system:nodes")?;
    let kubeconfig = cluster.write_kubeconfig("kubelet.kubeconfig", &Credentials::Certificate(identity))?;
    let config = pki::write(folder, "kubelet.yaml", &kubelet_config(folder, &node.socket)?)?;
    let args = [
        format!("--config={}", config.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", folder.join("kubelet").display()),
        format!("--cert-dir={}", folder.join("kubelet-certs").display()),
        format!("--hostname-override={}", node.name),
    ];
    cluster.spawn("kubelet", &cluster.program(Program::Kubelet)?, &args)?;

    let nodes: Api<ApiNode> = Api::all(cluster.client().await?);
    until("the node to be Ready", START_LIMIT, async || {
        cluster.check_processes()?;
        let found = nodes.get_opt(&node.name).await.map_err(Error::api("reading the node"))?;
        let Some(found) = found else { return Ok(Err("no Node object yet".to_owned())) };
        let conditions = found.status.and_then(|s| s.conditions).unwrap_or_default();
        let ready = conditions.into_iter().find(|c| c.type_ == "Ready");
        Ok(match ready {
            Some(c) if c.status == "True" => Ok(()),
            Some(c) => Err(c.message.unwrap_or_default()),
            None => Err("no condition Ready yet".to_owned()),
        })
    })
    .await
}

fn containerd_config(folder: &Path, node: &Node) -> String {
    let (folder, socket, plugins) = (folder.display(), node.socket.display(), node.cni_plugins.display());
    // Containers and small VMs may not set a negative OOM score, hence restrict_oom_score_adj. The
    // disabled plugins would log errors or write outside the cluster's folder.
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "{folder}/{CONTAINERD_STATE}"
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"#
    )
}

/// Returns the CNI configuration: pods reach the machine and each other, and nothing else.
fn cni_config(bridge: &str, range: Range) -> String {
    let config = json!({
        "cniVersion": "0.4.0",
        "name": "caretaker",
        "plugins": [{
            "type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": false, "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": range.to_string() }]],
                "dataDir": "/run/cni-addresses",
            },
        }],
    });
    format!("{config:#}")
}

fn kubelet_config(folder: &Path, socket: &Path) -> Result<String> {
    let port = std::net::TcpListener::bind(("0.0.0.0", 0)).and_then(|l| l.local_addr()).map_err(Error::Port)?.port();
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "port": port,
        "healthzPort": 0,
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": folder.join("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "podLogsDir": folder.join("pod-logs"),
        "volumePluginDir": folder.join("volume-plugins"),
        "resolvConf": "",
        "failSwapOn": false,
        // Many small machines have cgroup v1 and no systemd.
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false,
        "makeIPTablesUtilChains": false,
        // No evictions: how full the machine is does not matter to a test.
        "evictionHard": { "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%" },
        "imageGCHighThresholdPercent": 100,
        // Tests wait for changes of status, so the kubelet reports often.
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "4s",
    });
    Ok(format!("{config:#}\n"))
}
