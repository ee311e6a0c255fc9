{{/*
A process of Sandtrail as a pod: (dict "root" $ "role" ROLE "image" IMAGE "args" LIST "resources" MAP), and where it has them "health"
(port of health and metrics), "ports", "secrets" (map of mount to the rest of a secret's name), "env", "account" and "state"; "tls" is a secret
with the certificate that it shows, "authority" a ConfigMap with one that it trusts beside the public ones, both by their whole names.
The role says whose nkey it holds: each pod mounts its own secrets only.
*/}}
{{- define "sandtrail.pod" -}}
{{- $root := .root -}}
{{- $account := get . "account" -}}
{{- $health := get . "health" -}}
{{- $secrets := get . "secrets" | default dict -}}
{{- $state := get . "state" -}}
{{- $config := get . "config" -}}
{{- $tls := get . "tls" -}}
{{- $authority := get . "authority" -}}
{{- $prefix := $root.Values.secrets.prefix -}}
serviceAccountName: {{ $account | default (printf "%s-%s" (include "sandtrail.name" $root) "services") }}
automountServiceAccountToken: {{ ne $account "" }}
enableServiceLinks: false
securityContext:
  {{- include "sandtrail.podSecurity" $root | nindent 2 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $health }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "sandtrail.selector" (list $root .role) | nindent 8 }}
{{- end }}
containers:
  - name: {{ .role }}
    image: {{ include "sandtrail.image" (list $root .image) }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    args:
      {{- toYaml .args | nindent 6 }}
    env:
      - {name: SANDTRAIL_NATS, value: {{ include "sandtrail.natsURL" $root | quote }}}
      - {name: SANDTRAIL_NATS_NKEY, value: /secrets/nats/seed}
      - {name: SANDTRAIL_NATS_INBOX, value: _INBOX_{{ .role }}}
      {{- if $root.Values.nats.tls.secret }}
      - {name: SANDTRAIL_NATS_CA, value: /secrets/nats-tls/ca.crt}
      {{- end }}
      {{- if $root.Values.otlpEndpoint }}
      - {name: SANDTRAIL_OTLP_ENDPOINT, value: {{ $root.Values.otlpEndpoint | quote }}}
      {{- end }}
      {{- if $authority }}
      - {name: SSL_CERT_DIR, value: /authority}
      {{- end }}
      {{- range (get . "env" | default list) }}
      - {{ toYaml . | nindent 8 | trim }}
      {{- end }}
    {{- if $health }}
    ports:
      - {name: ops, containerPort: {{ $health }}}
      {{- range $name, $port := (get . "ports" | default dict) }}
      - {name: {{ $name }}, containerPort: {{ $port }}}
      {{- end }}
    # The log may be far away when everything starts at once: five minutes until that counts as a failure.
    startupProbe:
      httpGet: {path: /healthz, port: ops}
      periodSeconds: 2
      failureThreshold: 150
    livenessProbe:
      httpGet: {path: /healthz, port: ops}
      periodSeconds: 10
      timeoutSeconds: 5
    readinessProbe:
      httpGet: {path: /readyz, port: ops}
      periodSeconds: 5
      timeoutSeconds: 5
    {{- end }}
    resources:
      {{- toYaml .resources | nindent 6 }}
    securityContext:
      {{- include "sandtrail.containerSecurity" $root | nindent 6 }}
    volumeMounts:
      - {name: nats, mountPath: /secrets/nats, readOnly: true}
      {{- if $root.Values.nats.tls.secret }}
      - {name: nats-tls, mountPath: /secrets/nats-tls, readOnly: true}
      {{- end }}
      {{- range $mount, $secret := $secrets }}
      - {name: {{ $mount }}, mountPath: /secrets/{{ $mount }}, readOnly: true}
      {{- end }}
      {{- if $tls }}
      - {name: tls, mountPath: /secrets/tls, readOnly: true}
      {{- end }}
      {{- if $authority }}
      - {name: authority, mountPath: /authority, readOnly: true}
      {{- end }}
      {{- if $config }}
      - {name: config, mountPath: /config, readOnly: true}
      {{- end }}
      {{- if $state }}
      - {name: state, mountPath: /state}
      {{- end }}
volumes:
  - name: nats
    secret:
      secretName: {{ $prefix }}-nats-{{ .role }}
      defaultMode: 0440
      items: [{key: seed, path: seed}]
  {{- if $root.Values.nats.tls.secret }}
  - name: nats-tls
    secret:
      secretName: {{ $root.Values.nats.tls.secret }}
      defaultMode: 0440
      items: [{key: ca.crt, path: ca.crt}]
  {{- end }}
  {{- range $mount, $secret := $secrets }}
  - name: {{ $mount }}
    secret:
      secretName: {{ $prefix }}-{{ $secret }}
      defaultMode: 0440
  {{- end }}
  {{- if $tls }}
  - name: tls
    secret:
      secretName: {{ $tls }}
      defaultMode: 0440
      items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
  {{- end }}
  {{- if $authority }}
  - name: authority
    configMap:
      name: {{ $authority }}
      items: [{key: ca.crt, path: ca.crt}]
  {{- end }}
  {{- if $config }}
  - name: config
    configMap: {name: {{ $config }}}
  {{- end }}
  {{- if $state }}
  - name: state
    emptyDir: {sizeLimit: 1Gi}
  {{- end }}
{{- end }}

{{/* A Deployment of it, with "replicas", and "scaled" where an autoscaler sets their number. */}}
{{- define "sandtrail.deployment" -}}
{{- $root := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "sandtrail.name" $root }}-{{ .role }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "sandtrail.selector" (list $root .role) | nindent 4 }}
    {{- include "sandtrail.labels" $root | nindent 4 }}
spec:
  {{- if not (get . "scaled") }}
  replicas: {{ .replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  strategy:
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  selector:
    matchLabels:
      {{- include "sandtrail.selector" (list $root .role) | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "sandtrail.selector" (list $root .role) | nindent 8 }}
        {{- include "sandtrail.component" .role | nindent 8 }}
        {{- include "sandtrail.labels" $root | nindent 8 }}
      {{- if get . "config" }}
      annotations:
        sandtrail.dev/config: {{ include "sandtrail.cluster" $root | sha256sum | trunc 16 | quote }}
      {{- end }}
    spec:
      {{- include "sandtrail.pod" . | nindent 6 }}
{{- if gt (int .replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "sandtrail.name" $root }}-{{ .role }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "sandtrail.labels" $root | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "sandtrail.selector" (list $root .role) | nindent 6 }}
{{- end }}
{{- end }}

{{/* Flags of every service. */}}
{{- define "sandtrail.args" -}}
- --log-level={{ .Values.logLevel }}
- --provisioned
- --replicas={{ include "sandtrail.replicas" . }}
{{- end }}
