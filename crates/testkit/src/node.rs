//! A real node: containerd, kubelet and a pod network, from Debian's packages and the kit's own
//! kubelet.
//!
//! Everything it writes is in the cluster's folder, or in a `/run`, `/var/lib` and `/var/log` that
//! only it sees (the supervisor's mount namespace). It changes no setting of the machine. What it
//! leaves in the machine's own tables, a bridge and the control groups of its containers, is
//! removed at the end.

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

/// containerd answers within a second, a node is Ready in 6 s here.
const LIMIT: Duration = Duration::from_secs(90);
const PAUSE_IMAGE: &str = "caretaker.test/pause:1";
/// Where Debian has the network plugins, and where everybody else has them.
const CNI: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// What a shell script in a test pod would call.
const APPLETS: [&str; 10] = ["sh", "sleep", "cat", "echo", "ls", "wget", "httpd", "nc", "true", "false"];

/// A node of a throwaway cluster.
#[derive(Debug)]
pub struct Node {
    name: String,
    socket: PathBuf,
    range: Range,
}

impl Node {
    /// Whether this machine can run one; else what it needs, as a reason for a skipped test.
    pub fn possible() -> Result<(), String> {
        if !is_root() {
            return Err("needs root".to_owned());
        }
        for (file, package) in [
            ("unshare", "util-linux"),
            ("mount", "mount"),
            ("containerd", "containerd"),
            ("ctr", "containerd"),
            ("runc", "runc"),
            ("busybox", "busybox-static"),
            ("ip", "iproute2"),
        ] {
            if find(file).is_none() {
                return Err(format!("needs {file} (Debian package {package})"));
            }
        }
        if plugins().is_none() {
            let places = CNI.join(" or ");
            return Err(format!(
                "needs the CNI plugin bridge in {places} (Debian package containernetworking-plugins)"
            ));
        }
        if !may_isolate() {
            return Err("needs CAP_SYS_ADMIN (unshare is refused)".to_owned());
        }
        match assets::lacking(&[Program::Kubelet, Program::ControllerManager, Program::Scheduler]) {
            Some(what) => Err(format!("needs {what}")),
            None => Ok(()),
        }
    }

    /// Its name in the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a pod of this node can have that address.
    #[must_use]
    pub fn has_address(&self, address: Ipv4Addr) -> bool {
        self.range.contains(address)
    }

    /// containerd's socket.
    #[must_use]
    pub fn containerd_socket(&self) -> &Path {
        &self.socket
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.map(|f| f.join(program)).find(|p| p.is_file())
}

fn needed(program: &str) -> Result<PathBuf> {
    find(program).ok_or_else(|| Error::NoNode(format!("needs {program}")))
}

/// The folder of the network plugins.
fn plugins() -> Option<&'static str> {
    CNI.into_iter().find(|folder| ["bridge", "host-local"].iter().all(|p| Path::new(folder).join(p).is_file()))
}

pub(crate) async fn start(cluster: &Cluster) -> Result<Node> {
    // Interface names are short; the folder's random ending is unique among living clusters.
    let id = cluster.folder().to_string_lossy().rsplit('-').next().unwrap_or_default().to_lowercase();
    let bridge = format!("ctk{id}");

    let supervisor = cluster.supervisor();
    supervisor.owns_link(&bridge)?;
    supervisor.owns_cgroups_of(&cluster.folder().join("containerd-state/io.containerd.runtime.v2.task/k8s.io"))?;
    for place in ["/run", "/var/lib", "/var/log"] {
        supervisor.run("mount", ["-t", "tmpfs", "tmpfs", place])?;
    }
    pretend_settings(cluster)?;
    let range = Range::claim(supervisor, &bridge)?;
    let node = Node { name: format!("node-{id}"), socket: cluster.folder().join("containerd.sock"), range };
    start_containerd(cluster, &node, &bridge).await?;
    start_kubelet(cluster, &node).await?;
    Ok(node)
}

/// The kubelet and the bridge plugin set these for the whole machine if they find them otherwise.
/// They find them as they like, in files that only they see.
fn pretend_settings(cluster: &Cluster) -> Result<()> {
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
        let place = format!("/proc/sys/{setting}");
        if Path::new(&place).exists() {
            cluster.supervisor().run("mount", ["--bind", &file.to_string_lossy(), &place])?;
        }
    }
    Ok(())
}

async fn start_containerd(cluster: &Cluster, node: &Node, bridge: &str) -> Result<()> {
    let folder = cluster.folder();
    let cni = folder.join("cni");
    std::fs::create_dir_all(&cni).map_err(Error::file(&cni))?;
    pki::write(&cni, "10-bridge.conflist", &cni_config(bridge, node.range))?;
    let config = pki::write(folder, "containerd.toml", &containerd_config(folder, &node.socket))?;
    let args = ["--config".to_owned(), config.display().to_string()];
    cluster.spawn("containerd", &needed("containerd")?, &args)?;

    let ctr = |words: &[&str]| {
        let mut args = vec!["--connect-timeout", "1s", "--address", node.socket.to_str().expect("a folder of ours")];
        args.extend(["--namespace", "k8s.io"]);
        args.extend(words);
        cluster.supervisor().run("ctr", args)
    };
    until("containerd to answer", LIMIT, async || {
        cluster.alive()?;
        // Asked only once somebody listens: ctr would wait for the socket, and nobody could ask
        // whether containerd still lives.
        if tokio::net::UnixStream::connect(&node.socket).await.is_err() {
            return Ok(Err("nobody listens on its socket".to_owned()));
        }
        Ok(ctr(&["--timeout", "1s", "version"]).map_err(|e| e.to_string()))
    })
    .await?;

    let busybox = needed("busybox")?;
    let image = |name, command| Image { name, program: &busybox, at: "bin/busybox", links: &APPLETS, command };
    // `sh` with a trap ends at once on SIGTERM, which the first process of a container else ignores.
    let forever = ["sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"];
    for (image, file) in [(image(PAUSE_IMAGE, &forever), "pause.tar"), (image(make::IMAGE, &forever), "busybox.tar")] {
        let archive = image.write(&folder.join(file))?;
        ctr(&["images", "import", archive.to_str().expect("a folder of ours")])?;
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
    until("the node to be Ready", LIMIT, async || {
        cluster.alive()?;
        let found = nodes.get_opt(&node.name).await.map_err(Error::api("reading the node"))?;
        let Some(found) = found else { return Ok(Err("no node yet".to_owned())) };
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

fn containerd_config(folder: &Path, socket: &Path) -> String {
    let folder = folder.display();
    let socket = socket.display();
    let plugins = plugins().unwrap_or(CNI[0]);
    // A negative OOM score is refused inside a container or a small VM, hence the restriction. The
    // plugins switched off would only complain, or write outside of our folder.
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
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

/// Pods reach the machine and each other, nothing beyond.
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
        // cgroup v1 without systemd is what many small machines have.
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false,
        "makeIPTablesUtilChains": false,
        // The machine's disk is nobody's business here.
        "evictionHard": { "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%" },
        "imageGCHighThresholdPercent": 100,
        // Tests wait for states: the kubelet should tell them soon.
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "4s",
    });
    Ok(format!("{config:#}\n"))
}
