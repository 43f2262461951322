//! The manifests in `deploy`, for people without Helm: each is what the chart makes of these values.

use std::collections::BTreeSet;
use std::path::PathBuf;

use caretaker_test_programs::workspace;

use super::template;

/// A manifest in `deploy`: how it begins, and the values that it is rendered with.
struct DeployFile {
    name: String,
    head: String,
    values: String,
}

/// A keeper that has manifests of its own: one that can only read, and one that acts.
struct Alone {
    keeper: &'static str,
    namespace: &'static str,
    /// Selects its pods.
    pods: &'static str,
    /// What it may write in a dry run.
    may: &'static str,
    /// What comes before `kubectl apply` of the manifest that acts.
    first: &'static str,
    /// What else the head of both says.
    more: &'static str,
    values: &'static str,
}

const ALONE: [Alone; 5] = [
    Alone {
        keeper: "namespaces",
        namespace: "caretaker-system",
        pods: "app.kubernetes.io/name=caretaker",
        may: "It can only read.",
        first: "",
        more: "With keepers.namespaces.deletion: never in its settings, the rights on persistentvolumeclaims and pods, and\n\
               the verb delete of the one that acts, can be removed.",
        values: "keepers.namespaces.enabled=true",
    },
    Alone {
        keeper: "addresses",
        namespace: "caretaker-system",
        pods: "app.kubernetes.io/name=caretaker-addresses",
        may: "It can only read.",
        first: "switch Spiderpool's own collector off with its chart's value\nipam.gc.enabled=false, so that there are not two, and ",
        more: "Its settings can be given as Spiderpool's own variables (SPIDERPOOL_GC_ADDITIONAL_GRACE_DELAY and so on):\n\
               docs/addresses.md.",
        values: "config.create=false,keepers.namespaces.enabled=false,keepers.addresses.enabled=true",
    },
    Alone {
        keeper: "windows",
        namespace: "caretaker-system",
        pods: "app.kubernetes.io/name=caretaker-windows",
        may: "It can only read.",
        first: "",
        more: "Rights on kinds that are not installed do no harm.",
        values: "config.create=false,keepers.namespaces.enabled=false,keepers.windows.enabled=true",
    },
    Alone {
        keeper: "runtimes",
        namespace: "caretaker-system",
        pods: "app.kubernetes.io/name=caretaker-runtimes",
        may: "It can only read.",
        first: "",
        more: "kdoctor runs in the namespace kdoctor here, which must exist: where it runs in another, write that instead in\n\
               the Role, its RoleBinding and the variable CARETAKER_RUNTIMES_NAMESPACE. caretaker plan reads that variable, too.",
        values: "config.create=false,keepers.namespaces.enabled=false,keepers.runtimes.enabled=true,\
                 keepers.runtimes.settings.namespace=kdoctor",
    },
    Alone {
        keeper: "containers",
        namespace: "caretaker-node",
        pods: "app=caretaker-node",
        may: "It can write its report, and nothing else.",
        first: "",
        more: "Each node writes what it would do to a ConfigMap of its own, which caretaker plan reads: so it may create and\n\
               patch ConfigMaps in its own namespace. Without --report it writes nothing at all in a dry run, and its Role and\n\
               RoleBinding can be removed.",
        values: "namespace.create=false,config.create=false,keepers.namespaces.enabled=false,keepers.containers.enabled=true,\
                 keepers.containers.report=true",
    },
];

/// Beside others it has nothing that two of them share, and the rights of what can be switched on by hand.
const BESIDE_OTHERS: &str = "namespace.create=true,rbac.minimal=false,rbac.people=false,networkPolicy.enabled=false,\
                             podDisruptionBudget.enabled=false,priorityClass.name=";

impl Alone {
    fn files(&self) -> [DeployFile; 2] {
        let Self { keeper, namespace, pods, may, first, more, values } = self;
        let more = if more.is_empty() { String::new() } else { format!("\n{more}") };
        let log = format!("kubectl -n {namespace} logs -l {pods} --prefix --tail=-1");
        let dry = format!(
            "The {keeper} keeper alone, in dry run: the journal has what it would have done. {may}\n\
             \n  kubectl apply -f deploy/{keeper}.yaml\n  caretaker plan\n  {log}\n\n\
             When you agree with what it says, {first}apply deploy/{keeper}-live.yaml.{more}"
        );
        let live = format!(
            "The {keeper} keeper alone, live: it acts. Begin with deploy/{keeper}.yaml, its dry run.\n\
             \n  kubectl apply -f deploy/{keeper}-live.yaml\n  {log}\n\n\
             It has exactly the rights below. To go back to a dry run: docs/going-back.md.{more}"
        );
        let values = format!("{BESIDE_OTHERS},{values}");
        [
            DeployFile { name: format!("{keeper}.yaml"), head: dry, values: values.clone() },
            DeployFile { name: format!("{keeper}-live.yaml"), head: live, values: format!("{values},dryRun=false") },
        ]
    }
}

fn manifests() -> Vec<DeployFile> {
    let file = |name: &str, head: &str, values: &str| DeployFile {
        name: name.to_owned(),
        head: head.to_owned(),
        values: values.to_owned(),
    };
    let log = "kubectl -n caretaker-system logs -l app.kubernetes.io/name=caretaker --prefix --tail=-1";
    let mut all = vec![
        file(
            "install.yaml",
            &format!(
                "What `helm install` with the chart's own values makes, for people without Helm: the namespaces keeper in dry\n\
                 run. Its account can only read.\n\n  kubectl apply -f deploy/install.yaml\n  caretaker plan\n  {log}\n\n\
                 When you agree with what it says: deploy/install-live.yaml, which says what comes first."
            ),
            "namespace.create=true",
        ),
        file(
            "install-live.yaml",
            &format!(
                "deploy/install.yaml made live: the namespaces keeper, which acts. Begin with deploy/install.yaml, which can only\n\
                 read. Without a source of activity (docs/activity.md) Caretaker cannot see who uses a namespace: it puts it to\n\
                 sleep by its schedule, by an order, and by its label sleep-after even while it is in use, and deletes nothing.\n\
                 \n  kubectl apply -f deploy/install-live.yaml\n  {log}\n\n\
                 To go back to a dry run: docs/going-back.md. Before you remove it: caretaker cleanup --all --stop."
            ),
            "namespace.create=true,rbac.minimal=false,dryRun=false",
        ),
    ];
    all.extend(ALONE.iter().flat_map(Alone::files));
    all.push(file(
        "people.yaml",
        "Roles for people who run the commands, for manifests without Helm; install.yaml has them as well.\n\
         \n  kubectl apply -f deploy/people.yaml",
        "show=rbac-people",
    ));
    all.push(file(
        "networkpolicy.yaml",
        "Who may connect to Caretaker, for manifests without Helm.\n\n  kubectl apply -f deploy/networkpolicy.yaml",
        "show=networkpolicy,audit.enabled=true",
    ));
    all.push(file(
        "admission.yaml",
        "What Caretaker's accounts may change on a workload, for manifests without Helm: docs/security.md. Add people who\n\
         are bound to caretaker-sleeper to the expression of the matchCondition.\n\
         \n  kubectl apply -f deploy/admission.yaml",
        "show=admission,admissionPolicy.enabled=true",
    ));
    all
}

impl DeployFile {
    fn path(&self) -> PathBuf {
        workspace().join("deploy").join(&self.name)
    }

    fn rendered(&self) -> String {
        let (show, values): (Vec<&str>, Vec<&str>) =
            self.values.split(',').partition(|value| value.starts_with("show="));
        let show = show.first().map(|show| show.replace("show=", "templates/") + ".yaml");
        let show: Vec<&str> = show.iter().flat_map(|file| ["--show-only", file]).collect();
        // What Helm runs before an uninstall or an upgrade would run at once here.
        let values =
            [values.as_slice(), &["cleanup.onUninstall=false", "cleanup.beforeDryRun=false"]].concat().join(",");
        let rendered = template(&[["--set", &values].as_slice(), &show].concat()).unwrap();
        let body: Vec<&str> = rendered.lines().filter(|line| !line.starts_with("# Source: ")).collect();
        let head = self.head.lines().map(|line| format!("# {line}").trim_end().to_owned());
        let from =
            "# Rendered from charts/caretaker; UPDATE_MANIFESTS=1 cargo test -p caretaker --test chart does it again.";
        let head: Vec<String> = head.chain(["#".to_owned(), from.to_owned()]).collect();
        format!("{}\n{}\n", head.join("\n"), body.join("\n").trim_start_matches("---\n").trim_end())
    }
}

#[test]
fn the_manifests_are_those_that_the_chart_makes() {
    let manifests = manifests();
    for manifest in &manifests {
        let (path, rendered) = (manifest.path(), manifest.rendered());
        if std::env::var_os("UPDATE_MANIFESTS").is_some() {
            std::fs::write(&path, &rendered).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == rendered,
            "deploy/{} is not what the chart makes; UPDATE_MANIFESTS=1 cargo test -p caretaker --test chart writes it again",
            manifest.name
        );
    }
    let there = std::fs::read_dir(workspace().join("deploy")).unwrap();
    let there: BTreeSet<String> = there.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(there, manifests.into_iter().map(|manifest| manifest.name).collect());
}
