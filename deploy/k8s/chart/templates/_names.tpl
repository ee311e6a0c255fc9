{{/* The names that everything shares. */}}
{{- define "sandtrail.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "sandtrail.labels" -}}
app.kubernetes.io/part-of: sandtrail
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
{{- end }}

{{/* Labels by which pods are chosen: (list $ "component"). */}}
{{- define "sandtrail.selector" -}}
app.kubernetes.io/name: sandtrail-{{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end }}

{{/* The service that a role is part of: by it the policy of sandboxes lets in whom it lets in. */}}
{{- define "sandtrail.component" -}}
app.kubernetes.io/component: {{ ternary "lifecycle" . (eq . "worker") }}
{{- end }}

{{/* (list $ "component") */}}
{{- define "sandtrail.image" -}}
{{- $v := (index . 0).Values.image -}}
{{ $v.registry }}/sandtrail-{{ index . 1 }}:{{ $v.tag | default (index . 0).Chart.AppVersion }}
{{- end }}

{{- define "sandtrail.natsURL" -}}
{{- if .Values.nats.enabled -}}
{{ ternary "tls" "nats" (ne .Values.nats.tls.secret "") }}://{{ include "sandtrail.name" . }}-nats.{{ .Release.Namespace }}.svc:4222
{{- else -}}
{{ .Values.nats.url }}
{{- end -}}
{{- end }}

{{- define "sandtrail.replicas" -}}
{{ ternary .Values.nats.replicas .Values.nats.streamReplicas .Values.nats.enabled }}
{{- end }}

{{- define "sandtrail.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "sandtrail.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
