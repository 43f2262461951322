//! The accounts of GitOps controllers.

/// Patterns for the accounts of GitOps controllers. They read and rehearse all day, so their reads and dry runs do not
/// count as activity. A write means that somebody changed the source, so it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitOpsAccounts {
    /// User names.
    pub users: Vec<String>,
    /// Groups.
    pub groups: Vec<String>,
    /// True if writes count that are no dry run.
    pub writes_count: bool,
}

impl Default for GitOpsAccounts {
    /// The service accounts of the namespaces that Flux, Argo CD, OpenShift GitOps and Fleet are installed in.
    fn default() -> Self {
        let namespaces = ["flux-system", "argocd", "argo-cd", "openshift-gitops", "cattle-fleet-system"];
        let groups = namespaces.map(|namespace| format!("system:serviceaccounts:{namespace}")).to_vec();
        Self { users: Vec::new(), groups, writes_count: true }
    }
}

impl GitOpsAccounts {
    /// Returns these accounts with more users and groups.
    #[must_use]
    pub fn extended_with(mut self, users: &[String], groups: &[String]) -> Self {
        self.users.extend_from_slice(users);
        self.groups.extend_from_slice(groups);
        self
    }
}
