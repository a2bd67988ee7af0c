{{- define "koordgate.reporter.labels" -}}
{{ include "koordgate.labels" (dict "root" . "name" "koordgate-reporter" "component" "reporter") }}
{{- end }}

{{- define "koordgate.reporter.selector" -}}
app.kubernetes.io/name: koordgate-reporter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Whether the kubelet's configuration is outside the kubelet's folder, and needs a mount of its own. */}}
{{- define "koordgate.reporter.configurationApart" -}}
{{- if not (hasPrefix (printf "%s/" .Values.reporter.kubelet.directory) .Values.reporter.kubelet.configuration) }}yes{{ end -}}
{{- end }}

{{/* The volume of a folder that is hidden from the reporter; takes the folder's name. */}}
{{- define "koordgate.reporter.hiddenVolume" -}}
hidden-{{ replace "_" "-" . }}
{{- end }}
