{{/* Names are fixed, not made from the release's: there is one koordgate in a cluster, and its users and objects are known by name. */}}

{{- define "koordgate.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: koordgate
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "koordgate.webhook.labels" -}}
{{ include "koordgate.labels" (dict "root" . "name" "koordgate" "component" "webhook") }}
{{- end }}

{{- define "koordgate.scheduler.labels" -}}
{{ include "koordgate.labels" (dict "root" . "name" "koord-scheduler" "component" "scheduler") }}
{{- end }}

{{- define "koordgate.webhook.selector" -}}
app.kubernetes.io/name: koordgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "koordgate.scheduler.selector" -}}
app.kubernetes.io/name: koord-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Every device resource that koordgate reads, sorted, as a JSON list: the keys of allocator.names.DEVICE_RESOURCES. */}}
{{- define "koordgate.deviceResources" -}}
{{- list
  "kubernetes.io/gpu"
  "kubernetes.io/gpu-core"
  "kubernetes.io/gpu-memory"
  "kubernetes.io/gpu-memory-ratio"
  "kubernetes.io/gpu.shared"
  "koordinator.sh/gpu"
  "koordinator.sh/gpu-core"
  "koordinator.sh/gpu-memory"
  "koordinator.sh/gpu-memory-ratio"
  "koordinator.sh/gpu.shared"
  "nvidia.com/gpu"
  | sortAlpha | toJson -}}
{{- end }}

{{/* A number as YAML 1.1 and 1.2 both read it: Helm itself would write 1000000 as 1e+06. */}}
{{- define "koordgate.number" -}}
{{- $number := float64 . -}}
{{- if eq $number (floor $number) }}{{ int64 $number }}{{ else }}{{ printf "%f" $number }}{{ end -}}
{{- end }}

{{/* The one user whose Bindings allocate. */}}
{{- define "koordgate.schedulerUsername" -}}
{{- if .Values.scheduler.username -}}
{{- .Values.scheduler.username -}}
{{- else if .Values.scheduler.enabled -}}
{{- printf "system:serviceaccount:%s:koord-scheduler" .Release.Namespace -}}
{{- else -}}
{{- fail "scheduler.enabled is false: set scheduler.username to the user of the scheduler that binds device Pods, such as system:serviceaccount:koordinator-system:koord-scheduler" -}}
{{- end -}}
{{- end }}

{{/* The Secret that holds the CA and the serving certificate. */}}
{{- define "koordgate.secret" -}}
{{- .Values.certificate.existingSecret | default "koordgate-tls" -}}
{{- end }}

{{/* The Secret that the webhook makes for the scheduler; the settings' own default. */}}
{{- define "koordgate.clientSecret" -}}
koordgate-scheduler-tls
{{- end }}

{{/* What the scheduler's Pod mounts to reach the extender: the CA to trust and, with client certificates, its own certificate. */}}
{{- define "koordgate.schedulerTLS" -}}
{{- $pair := .Values.scheduler.clientCertificates }}
{{- if not $pair -}}
secret:
  secretName: {{ include "koordgate.secret" . }}
  items:
    - {key: ca.crt, path: ca.crt}
{{- else if not .Values.certificate.existingSecret -}}
secret:
  secretName: {{ include "koordgate.clientSecret" . }}
  optional: false
  defaultMode: 0440
  items:
    - {key: ca.crt, path: ca.crt}
    - {key: tls.crt, path: tls.crt}
    - {key: tls.key, path: tls.key}
{{- else -}}
# The two certificates may be by different CAs: the one that signed the webhook's is the one to trust.
projected:
  defaultMode: 0440
  sources:
    - secret:
        name: {{ include "koordgate.secret" . }}
        items:
          - {key: ca.crt, path: ca.crt}
    - secret:
        name: {{ required "certificate.existingSecret is set: set certificate.existingClientSecret too, to a Secret with the scheduler's certificate, or scheduler.clientCertificates to false" .Values.certificate.existingClientSecret }}
        items:
          - {key: tls.crt, path: tls.crt}
          - {key: tls.key, path: tls.key}
{{- end }}
{{- end }}

{{/* The host of a URL, an IPv6 address without its brackets. */}}
{{- define "koordgate.host" -}}
{{- (urlParse .).hostname -}}
{{- end }}

{{/* Where the extender is reached, without a path: of the Service, or outside the cluster. */}}
{{- define "koordgate.extenderURL" -}}
{{- if and .Values.webhook.externalURL (not .Values.webhook.externalExtenderURL) -}}
{{- fail "webhook.externalURL is set: set webhook.externalExtenderURL too, to where the scheduler reaches the extender's port, such as https://gate.example.com:9444" -}}
{{- end -}}
{{- .Values.webhook.externalExtenderURL | default (printf "https://koordgate.%s.svc:9444" .Release.Namespace) -}}
{{- end }}

{{/* The clientConfig of a webhook; takes root and path. */}}
{{- define "koordgate.clientConfig" -}}
{{- if .root.Values.webhook.externalURL -}}
url: {{ printf "%s%s" .root.Values.webhook.externalURL .path | quote }}
{{- else -}}
service:
  name: koordgate
  namespace: {{ .root.Release.Namespace }}
  port: 443
  path: {{ .path }}
{{- end }}
{{- with .root.Values.webhook.caBundle }}
caBundle: {{ regexReplaceAll "\\s" . "" }}
{{- end }}
{{- end }}

{{/* Which namespaces a webhook looks at: all but the exempt ones. The label is set by the API server and no tenant can change it. */}}
{{- define "koordgate.namespaceSelector" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
      {{- concat (list "kube-system" .Release.Namespace) .Values.exemptNamespaces | uniq | sortAlpha | toYaml | nindent 6 }}
{{- end }}

{{/* CEL: the annotation `key` says who holds what, so that only the bind may write it (allocator.names.is_allocation_annotation). */}}
{{- define "koordgate.cel.allocationKey" -}}
key in ['scheduling.koordinator.sh/device-allocated', 'scheduling.koordinator.sh/resource-status'] || key.startsWith('visible-devices.koordgate.io/')
{{- end }}

{{/* CEL: the annotation `key` may not be changed once the Pod is there. */}}
{{- define "koordgate.cel.frozenKey" -}}
key in ['koordgate.io/original-request', 'scheduling.koordinator.sh/device-allocated', 'scheduling.koordinator.sh/resource-status'] || key.startsWith('visible-devices.koordgate.io/')
{{- end }}

{{/* CEL: some container of the list asks for a device; takes root and list. */}}
{{- define "koordgate.cel.asks" -}}
{{- $names := printf "['%s']" (include "koordgate.deviceResources" .root | fromJsonArray | join "', '") -}}
has({{ .list }}) && {{ .list }}.exists(c, has(c.resources) && (
  has(c.resources.requests) && c.resources.requests.exists(name, name in {{ $names }}) ||
  has(c.resources.limits) && c.resources.limits.exists(name, name in {{ $names }})
))
{{- end }}

{{/* CEL: the Pod asks for a device, or says that it has one. */}}
{{- define "koordgate.cel.devicePod" -}}
{{ include "koordgate.cel.asks" (dict "root" . "list" "object.spec.containers") }} ||
{{ include "koordgate.cel.asks" (dict "root" . "list" "object.spec.initContainers") }} ||
has(object.metadata.annotations) && object.metadata.annotations.exists(key, {{ include "koordgate.cel.allocationKey" . }})
{{- end }}

{{/* CEL: an annotation that may not be changed was added, changed or removed. */}}
{{- define "koordgate.cel.frozenChanged" -}}
has(object.metadata.annotations) && object.metadata.annotations.exists(key, ({{ include "koordgate.cel.frozenKey" . }}) &&
  !(has(oldObject.metadata.annotations) && key in oldObject.metadata.annotations && oldObject.metadata.annotations[key] == object.metadata.annotations[key])) ||
has(oldObject.metadata.annotations) && oldObject.metadata.annotations.exists(key, ({{ include "koordgate.cel.frozenKey" . }}) &&
  !(has(object.metadata.annotations) && key in object.metadata.annotations))
{{- end }}

{{/* The security context of every container of ours. */}}
{{- define "koordgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Security and placement that the Pods of both Deployments share; takes root and selector. */}}
{{- define "koordgate.podSpec" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $.selector | nindent 8 }}
  {{- end }}
{{- end }}
