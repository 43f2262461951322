{{/* The keepers of the operator that are enabled, in a fixed order, separated by spaces. */}}
{{- define "caretaker.keepers" -}}
{{- $enabled := list -}}
{{- range $name := list "namespaces" "addresses" "windows" "runtimes" -}}
{{- if (index $.Values.keepers $name).enabled }}{{ $enabled = append $enabled $name }}{{ end -}}
{{- end -}}
{{- join " " $enabled -}}
{{- end -}}

{{/* The name of a keeper's Deployment and service account. The namespaces keeper was the first, and has the plain name. */}}
{{- define "caretaker.name" -}}
{{- if eq . "namespaces" }}caretaker{{ else }}caretaker-{{ . }}{{ end -}}
{{- end -}}

{{/* "true" if the roles allow writing: never in a dry run. */}}
{{- define "caretaker.writes" -}}
{{- if not .Values.dryRun }}true{{ end -}}
{{- end -}}

{{/* "true" if namespaces may be deleted. */}}
{{- define "caretaker.deletes" -}}
{{- if ne (dig "deletion" "asSpecified" .Values.keepers.namespaces.settings) "never" }}true{{ end -}}
{{- end -}}

{{- define "caretaker.image" -}}
{{- $image := index . 0 -}}
{{ $image.repository }}:{{ $image.tag | default (index . 1).Chart.AppVersion }}
{{- end -}}

{{/* The settings file. Every keeper is named, so that `caretaker plan` judges with the same ones. */}}
{{- define "caretaker.config" -}}
{{- $keepers := dict -}}
{{- range $name := list "namespaces" "addresses" "windows" "runtimes" -}}
{{- $keeper := index $.Values.keepers $name -}}
{{- $settings := omit $keeper.settings "enabled" -}}
{{- if and (eq $name "namespaces") $.Values.audit.enabled -}}
{{- $files := "/etc/caretaker-audit" -}}
{{- $tls := dict "cert" (printf "%s/tls.crt" $files) "key" (printf "%s/tls.key" $files) -}}
{{- $receiver := dict "source" "audit" "listen" "0.0.0.0:9443" "tls" $tls "tokenFile" (printf "%s/token" $files) -}}
{{- $settings = mergeOverwrite (dict "activity" $receiver) $settings -}}
{{- end -}}
{{- $_ := set $keepers $name (merge (dict "enabled" $keeper.enabled) $settings) -}}
{{- end -}}
{{- dict "leaseDuration" .Values.leaseDuration "keepers" $keepers | toYaml -}}
{{- end -}}

{{/* What every pod of the operator may and may not do: Pod Security `restricted`. */}}
{{- define "caretaker.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "caretaker.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/*
The moments at which the Job of the cleanup runs, separated by commas: before an uninstall, and before an upgrade or a
rollback that ends in a dry run. Nothing wakes in a dry run, so that what sleeps then would stay asleep.
*/}}
{{- define "caretaker.cleanup" -}}
{{- $moments := list -}}
{{- if include "caretaker.keepers" . -}}
{{- if .Values.cleanup.onUninstall }}{{ $moments = append $moments "pre-delete" }}{{ end -}}
{{- if and .Values.dryRun .Values.cleanup.beforeDryRun }}{{ $moments = concat $moments (list "pre-upgrade" "pre-rollback") }}{{ end -}}
{{- end -}}
{{- join "," $moments -}}
{{- end -}}

{{/* The annotations of an object of the cleanup; call it with (list WEIGHT $), such objects are ordered by the weight. */}}
{{- define "caretaker.hook" -}}
helm.sh/hook: {{ include "caretaker.cleanup" (index . 1) }}
helm.sh/hook-weight: {{ index . 0 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
