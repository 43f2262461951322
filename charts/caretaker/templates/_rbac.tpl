{{/*
The end of a keeper's ClusterRole and everything that binds it: call it with (list KEEPER $). What the engine itself needs
is the same for all: Events, the state and the Lease.
*/}}
{{- define "caretaker.rbac.common" -}}
{{- $keeper := index . 0 -}}
{{- $writes := include "caretaker.writes" (index . 1) -}}
{{- /* Windows neither counts nor limits what it does. */ -}}
{{- $counts := and $writes (ne $keeper "windows") -}}
{{- $account := include "caretaker.name" $keeper -}}
{{- if $writes }}
  # Events about them.
  - apiGroups: [events.k8s.io]
    resources: [events]
    verbs: [create, patch]
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: caretaker-{{ $keeper }}
  labels:
    app.kubernetes.io/part-of: caretaker
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: caretaker-{{ $keeper }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: caretaker-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: caretaker-{{ $keeper }}
  namespace: caretaker-system
  labels:
    app.kubernetes.io/part-of: caretaker
rules:
  # Pace counts and the breaker.
  - apiGroups: [""]
    resources: [configmaps]
    resourceNames: [caretaker-state]
    verbs: [get, list, watch{{ if $counts }}, patch{{ end }}]
{{- if $counts }}
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [create]
{{- end }}
{{- if $writes }}
  # Leader election.
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    resourceNames: [caretaker-{{ $keeper }}]
    verbs: [get, update]
  - apiGroups: [coordination.k8s.io]
    resources: [leases]
    verbs: [create]
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: caretaker-{{ $keeper }}
  namespace: caretaker-system
  labels:
    app.kubernetes.io/part-of: caretaker
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: caretaker-{{ $keeper }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: caretaker-system
{{- end -}}
