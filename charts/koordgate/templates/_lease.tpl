{{- define "koordgate.lease.labels" -}}
{{ include "koordgate.labels" (dict "root" . "name" "koordgate-lease" "component" "lease") }}
{{- end }}

{{- define "koordgate.lease.selector" -}}
app.kubernetes.io/name: koordgate-lease
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* The Lease that replicas renew; the settings' own default. */}}
{{- define "koordgate.lease.record" -}}
koordgate-health
{{- end }}

{{/* The user of the health lease's keeper. */}}
{{- define "koordgate.lease.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:koordgate-lease
{{- end }}
