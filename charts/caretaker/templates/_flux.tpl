{{/*
Rules for Flux's kinds: call it with `reads`, the verbs of reading, and `writes`, which is empty if nothing is written.
Alerts and providers have no status.
*/}}
{{- define "caretaker.flux" -}}
{{- $reads := .reads -}}
{{- $writes := .writes -}}
{{- range $rule := list
  (list "kustomize.toolkit.fluxcd.io" (list "kustomizations") true)
  (list "helm.toolkit.fluxcd.io" (list "helmreleases") true)
  (list "source.toolkit.fluxcd.io" (list "gitrepositories" "ocirepositories" "helmrepositories" "helmcharts" "buckets") true)
  (list "image.toolkit.fluxcd.io" (list "imagerepositories" "imagepolicies" "imageupdateautomations") true)
  (list "notification.toolkit.fluxcd.io" (list "receivers") true)
  (list "notification.toolkit.fluxcd.io" (list "alerts" "providers") false)
  (list "source.extensions.fluxcd.io" (list "artifactgenerators") true)
  (list "fluxcd.controlplane.io" (list "fluxinstances" "resourcesets" "resourcesetinputproviders") true)
}}
  - apiGroups: [{{ index $rule 0 }}]
    resources: [{{ join ", " (index $rule 1) }}]
    verbs: [{{ $reads }}{{ if $writes }}, patch{{ end }}]
{{- if and $writes (index $rule 2) }}
  - apiGroups: [{{ index $rule 0 }}]
    resources: [{{ range $i, $kind := index $rule 1 }}{{ if $i }}, {{ end }}{{ $kind }}/status{{ end }}]
    verbs: [patch]
{{- end }}
{{- end }}
{{- end -}}
