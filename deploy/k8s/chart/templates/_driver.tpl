{{/* What the services that reach into sandboxes are told about them. */}}
{{- define "sandtrail.workerArgs" -}}
- --ops=:8080
- --roles=worker
- --worker={{ .Values.worker.name }}
- --region={{ .Values.worker.region }}
- --driver=kube
- --shared
- --cluster-file=/config/cluster.yaml
- --agent-ca=/secrets/agent-ca/ca.crt
- --agent-cert=/secrets/agent/tls.crt
- --agent-key=/secrets/agent/tls.key
- --seal-key-file=/secrets/seal/seal.key
- --max-sandboxes={{ int .Values.worker.maxSandboxes }}
- --start-deadline={{ .Values.worker.startDeadline }}
- --keep-workspace={{ .Values.worker.keepWorkspace }}
{{- end }}

{{- define "sandtrail.execArgs" -}}
- --ops=:8080
- --worker={{ .Values.worker.name }}
- --agent-cert=/secrets/agent/tls.crt
- --agent-key=/secrets/agent/tls.key
- --seal-key-file=/secrets/seal/seal.key
- --max-execs={{ int .Values.exec.maxExecs }}
{{- end }}

{{- define "sandtrail.cluster" -}}
namespace: {{ .Values.sandboxes.namespace }}
servicesNamespace: {{ .Release.Namespace }}
port: {{ .Values.sandboxes.agentPort }}
toolbox:
  image: {{ include "sandtrail.image" (list $ "toolbox") }}
  source: {{ .Values.sandboxes.toolboxSource }}
profiles:
  {{- $own := dict "default" (dict "runtimeClass" .Values.sandboxes.runtimeClass.name) }}
  {{- mergeOverwrite $own (deepCopy .Values.sandboxes.profiles) | toYaml | nindent 2 }}
{{- with .Values.sandboxes.tenants }}
tenants:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
