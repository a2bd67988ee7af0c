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

{{/* The RuntimeClass that leads to NVIDIA's runtime; empty if the cluster has none. */}}
{{- define "koordgate.reporter.delivering" -}}
{{- hasKey .Values.devices "runtimeClassName" | ternary .Values.devices.runtimeClassName "nvidia" }}
{{- end }}

{{/* The handler of a RuntimeClass: as the cluster has it, or, where that cannot be seen, of the same name. Takes a dict of its name. */}}
{{- define "koordgate.reporter.handler" -}}
{{- if .name }}
{{- $class := lookup "node.k8s.io/v1" "RuntimeClass" "" .name }}
{{- get ($class | default dict) "handler" | default .name }}
{{- end }}
{{- end }}

{{/* The volume of a folder that is hidden from the reporter; takes the folder's name. */}}
{{- define "koordgate.reporter.hiddenVolume" -}}
hidden-{{ replace "_" "-" . }}
{{- end }}
