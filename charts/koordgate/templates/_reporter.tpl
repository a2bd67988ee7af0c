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

{{/* Fails where the values ask of the enforcer what it cannot do. */}}
{{- define "koordgate.enforcement.checked" -}}
{{- $by := .Values.limits.provider }}
{{- $enforcer := and .Values.reporter.enabled .Values.enforcement.enabled }}
{{- if and (has $by (list "cgroup" "HAMi-core" "mps")) (not $enforcer) }}
{{- fail (printf "limits.provider %s needs the enforcer: set enforcement.enabled and reporter.enabled to true, or limits.provider to another" $by) }}
{{- end }}
{{- if and .Values.enforcement.enabled (not .Values.reporter.enabled) }}
{{- fail "enforcement.enabled needs the reporter, of whose Pods the enforcer is a part: set reporter.enabled to true, or enforcement.enabled to false" }}
{{- end }}
{{- if and (eq .Values.devices.delivery "nri") (not $enforcer) }}
{{- fail "devices.delivery nri needs the enforcer: set enforcement.enabled and reporter.enabled to true, or devices.delivery to auto" }}
{{- end }}
{{- if and .Values.devices.closed (not $enforcer) }}
{{- fail "devices.closed needs the enforcer: set enforcement.enabled and reporter.enabled to true, or devices.closed to false" }}
{{- end }}
{{- if and (eq $by "HAMi-core") (not .Values.enforcement.hamiCore.library) }}
{{- fail "limits.provider HAMi-core needs its library on the nodes: put it there, and state its path as enforcement.hamiCore.library" }}
{{- end }}
{{- if and (eq $by "mps") (not .Values.enforcement.mps.pipe) }}
{{- fail "limits.provider mps needs an MPS daemon on the nodes: run one, and state its pipe directory as enforcement.mps.pipe" }}
{{- end }}
{{- end }}

{{/* Folders of what the administrator brings for limits, as JSON. */}}
{{- define "koordgate.enforcement.brought" -}}
{{- $found := list }}
{{- with .Values.enforcement.hamiCore.library }}
{{- $found = append $found (dir .) }}
{{- end }}
{{- with .Values.enforcement.mps.pipe }}
{{- $found = append $found . }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{/* The volume of a folder that is hidden from the reporter; takes the folder's name. */}}
{{- define "koordgate.reporter.hiddenVolume" -}}
hidden-{{ replace "_" "-" . }}
{{- end }}

{{/* A reporter's settings. Takes a dict of root and of class, the RuntimeClass of its container. */}}
{{- define "koordgate.reporter.settings" -}}
{{- with .root }}
{{- $own := list }}
{{- range .Values.devices.types }}
{{- $own = append $own (omit . "ignoredByScheduler") }}
{{- end }}
domain: {{ .Values.reporter.domain | default .Values.domain }}
logLevel: {{ .Values.logLevel }}
logFormat: {{ .Values.logFormat }}
roundSeconds: {{ include "koordgate.number" .Values.reporter.roundSeconds }}
roots:
  # The host's own: a container's sysfs shows the network devices of its own network namespace.
  sysfs: /host/sys
  proc: /proc
  cgroup: /host/cgroup
  kubelet: {{ .Values.reporter.kubelet.directory }}
  state: /var/lib/koordgate
serve:
  host: {{ .Values.webhook.host | quote }}
  port: {{ include "koordgate.number" .Values.reporter.port }}
kubelet:
  configuration: {{ .Values.reporter.kubelet.configuration | quote }}
  configz: {{ .Values.reporter.kubelet.configz }}
  podResources: {{ .Values.reporter.kubelet.podResources | ternary (printf "%s/pod-resources/kubelet.sock" .Values.reporter.kubelet.directory) "" | quote }}
gpus:
  enabled: {{ .Values.reporter.gpus.enabled }}
  discoveryLabels: {{ .Values.reporter.gpus.discoveryLabels }}
  quietSeconds: {{ include "koordgate.number" .Values.reporter.gpus.quietSeconds }}
  provingSeconds: {{ include "koordgate.number" .Values.reporter.gpus.provingSeconds }}
  outageSeconds: {{ include "koordgate.number" .Values.reporter.gpus.outageSeconds }}
runtime:
  directories: {{ .Values.reporter.runtime.directories | toJson }}
  delivery: {{ .Values.devices.delivery | default "auto" }}
  runtimeClassName: {{ include "koordgate.reporter.delivering" . | quote }}
  handler: {{ include "koordgate.reporter.handler" (dict "name" (include "koordgate.reporter.delivering" .)) | quote }}
  {{- if and .Values.reporter.gpus.enabled (not .Values.reporter.gpus.byNri) }}
  ownHandler: {{ include "koordgate.reporter.handler" (dict "name" $.class) | quote }}
  {{- end }}
  policies: {{ .Values.reporter.gpus.enabled }}
devices:
  types:
    {{- $own | toYaml | nindent 4 }}
  pci:
    {{- .Values.reporter.pci | toYaml | nindent 4 }}
{{- if hasKey .Values.reporter.cpus "takeOver" }}
{{- fail "reporter.cpus.takeOver is no longer there: set it to undo with the version that you have, restart the kubelets, then leave it out; enforcement.enabled does what it was for (docs/install/upgrade.md)" }}
{{- end }}
cpus:
  enforce: {{ .Values.reporter.cpus.enforce }}
  memory: {{ .Values.reporter.cpus.memory }}
{{- if .Values.enforcement.enabled }}
enforcement:
  enabled: true
  socket: {{ printf "%s/nri.sock" .Values.enforcement.directory | quote }}
  closed: {{ .Values.devices.closed }}
  # The containers here see all cards.
  exemptNamespaces: {{ append .Values.policies.visibleDevices.exemptNamespaces .Release.Namespace | uniq | toJson }}
  kinds: {{ .Values.enforcement.kinds | toJson }}
  provider: {{ .Values.limits.provider }}
  hamiCore:
    library: {{ .Values.enforcement.hamiCore.library | quote }}
  mps:
    pipe: {{ .Values.enforcement.mps.pipe | quote }}
    shm: {{ .Values.enforcement.mps.shm | quote }}
{{- end }}
proof:
  enabled: {{ .Values.reporter.proof.enabled }}
  environment: {{ .Values.reporter.proof.environment }}
metrics:
  pods: {{ .Values.reporter.metrics.pods }}
mirror:
  volcanoUnit: {{ include "koordgate.reporter.volcanoUnit" . | quote }}
{{- end }}
{{- end }}

{{/* What one volcano.sh/gpu-memory of a Node is; empty if Nodes state none. */}}
{{- define "koordgate.reporter.volcanoUnit" -}}
{{- $share := index .Values.dialects "volcano-share" }}
{{- if and $share.enabled (has "volcano" .Values.mirror) }}{{ $share.memoryUnit | default "1Mi" }}{{ end -}}
{{- end }}

{{/*
The kinds of reporters, a DaemonSet each, as JSON: one, or one on nodes with cards, whose container has a RuntimeClass, and one
on all others, which may lack the handler of that. The RuntimeClass is the one that is stated, else that of devices if Helm sees it
in the cluster.
*/}}
{{- define "koordgate.reporter.kinds" -}}
{{- $gpus := .Values.reporter.gpus }}
{{- $class := $gpus.runtimeClassName }}
{{- $nodes := $gpus.runtimeClassNodes }}
{{- if and $gpus.byNri $class }}
{{- fail "reporter.gpus.byNri and reporter.gpus.runtimeClassName are both set: the reporter sees cards by one of the two, so leave one out" }}
{{- end }}
{{- if and $gpus.enabled (not $class) (not $gpus.byNri) }}
{{- $found := include "koordgate.reporter.delivering" . }}
{{- if and $found (lookup "node.k8s.io/v1" "RuntimeClass" "" $found) }}
{{- $class = $found }}
{{- $nodes = $nodes | default (dict "nvidia.com/gpu.present" "true") }}
{{- end }}
{{- end }}
{{- $plain := dict "name" "koordgate-reporter" "config" "config.yaml" "class" "" "nodes" dict "without" dict }}
{{- if and $class $nodes }}
{{- $gpu := dict "name" "koordgate-reporter-gpu" "config" "gpu.yaml" "class" $class "nodes" $nodes "without" dict }}
{{- list (set $plain "without" $nodes) $gpu | toJson }}
{{- else }}
{{- list (set $plain "class" $class) | toJson }}
{{- end }}
{{- end }}

{{/* The affinity of reporters that stay off some nodes, as JSON. Takes a dict of affinity and of without, one label of those nodes. */}}
{{- define "koordgate.reporter.affinity" -}}
{{- $affinity := deepCopy .affinity }}
{{- range $key, $value := .without }}
{{- $apart := dict "key" $key "operator" "NotIn" "values" (list $value) }}
{{- $node := get $affinity "nodeAffinity" | default dict }}
{{- $required := get $node "requiredDuringSchedulingIgnoredDuringExecution" | default dict }}
{{- $terms := list }}
{{- range get $required "nodeSelectorTerms" | default (list dict) }}
{{- $terms = append $terms (set . "matchExpressions" (append (get . "matchExpressions" | default list) $apart)) }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- $affinity | toJson }}
{{- end }}
