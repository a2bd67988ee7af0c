{{/* Names are fixed and do not depend on the release: there is one koordgate per cluster, and others know its users and objects by name. */}}

{{/* Every object has labels, so that this stands before what a missing value would break. `helm upgrade --reuse-values` takes the
defaults of the version that is installed, which lack the newer values. */}}
{{- define "koordgate.labels" -}}
{{- if not (and (kindIs "map" .root.Values.tracing) (kindIs "map" .root.Values.enforcement) (kindIs "map" .root.Values.map) (kindIs "map" .root.Values.certificate.certManager)) }}
{{- fail "values of this version of the chart are missing, as after `helm upgrade --reuse-values` from an older one: use --reset-then-reuse-values (Helm 3.14 or newer), or --values with a file of your own values" }}
{{- end }}
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

{{- define "koordgate.doctor.labels" -}}
{{ include "koordgate.labels" (dict "root" . "name" "koordgate-doctor" "component" "doctor") }}
{{- end }}

{{/* Takes the values of an image, and the tag that counts if these state none. */}}
{{- define "koordgate.image" -}}
{{- $image := index . 0 -}}
{{- $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (index . 1) }}{{ end }}
{{- end }}

{{- define "koordgate.webhook.selector" -}}
app.kubernetes.io/name: koordgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "koordgate.scheduler.selector" -}}
app.kubernetes.io/name: koord-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* koordgate's table of dialects (allocator/vocabulary/dialects.py) as JSON; `make generate` writes the file. Takes the root. */}}
{{- define "koordgate.dialects" -}}
{{- .Files.Get "files/dialects.json" -}}
{{- end }}

{{/* Every device resource of a configured type, as a JSON list; takes the type (allocator.vocabulary.devicetype.own_dialects). */}}
{{- define "koordgate.typeResources" -}}
{{- $names := list .resource }}
{{- range .amounts }}
{{- $names = append $names .resource }}
{{- if .ratio }}
{{- $names = append $names .ratio }}
{{- end }}
{{- end }}
{{- if .split }}
{{- $names = append $names .split }}
{{- end }}
{{- $resource := .resource }}
{{- range .templates }}
{{- $names = append $names (printf "%s-%s" $resource .name) }}
{{- end }}
{{- $names | toJson -}}
{{- end }}

{{/* Other products' dialects as JSON: those that are on everywhere (`resources`, `annotations`, `forms`), those that are on in some namespaces
(`scoped`), and those that are off, except in some namespaces (`off`). Fails for a dialect that needs a memoryUnit. */}}
{{- define "koordgate.peers" -}}
{{- $known := (include "koordgate.dialects" . | fromJson).peers }}
{{- $resources := list }}
{{- $annotations := list }}
{{- $forms := list }}
{{- $scoped := list }}
{{- $off := list }}
{{- range $name, $peer := $known }}
{{- $chosen := get $.Values.dialects $name | default dict }}
{{- $of := dict "resources" $peer.resources "annotations" $peer.annotations "forms" $peer.forms "namespaces" ($chosen.namespaces | default list) }}
{{- if not $chosen.enabled }}
{{- $off = append $off (merge (dict "namespaces" list) $of) }}
{{- else if and $peer.needsMemoryUnit (not $chosen.memoryUnit) }}
{{- fail (printf "dialects.%s.memoryUnit is empty, and this dialect has no default: set it to what one unit of memory is, such as 1Mi" $name) }}
{{- else if $chosen.namespaces }}
{{- $scoped = append $scoped $of }}
{{- $off = append $off $of }}
{{- else }}
{{- $forms = concat $forms $peer.forms }}
{{- $resources = concat $resources $peer.resources }}
{{- $annotations = concat $annotations $peer.annotations }}
{{- end }}
{{- end }}
{{- dict "resources" (uniq $resources) "annotations" (uniq $annotations) "forms" $forms "scoped" $scoped "off" $off | toJson -}}
{{- end }}

{{/* Every annotation by which Pods ask for devices in all namespaces, as a JSON list. */}}
{{- define "koordgate.deviceAnnotations" -}}
{{- concat (include "koordgate.dialects" . | fromJson).annotations (include "koordgate.peers" . | fromJson).annotations | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* Every device resource that koordgate reads in all namespaces, sorted, as a JSON list. Fails for configured types that conflict with others. */}}
{{- define "koordgate.deviceResources" -}}
{{- $dialects := include "koordgate.dialects" . | fromJson }}
{{- $peers := include "koordgate.peers" . | fromJson }}
{{- $names := concat $dialects.resources $peers.resources | uniq }}
{{- $taken := $names }}
{{- range $peers.scoped }}
{{- $taken = concat $taken .resources }}
{{- end }}
{{- $types := $dialects.types }}
{{- range .Values.devices.types }}
{{- if has .name $types }}
{{- fail (printf "devices.types: there is a type %s already; give the new one another name" .name) }}
{{- end }}
{{- $type := . }}
{{- range include "koordgate.typeResources" . | fromJsonArray }}
{{- if has . $taken }}
{{- fail (printf "devices.types: resource %s of type %s is already that of another type; give it another name" . $type.name) }}
{{- end }}
{{- if and (include "koordgate.ignored" $type) (or (contains "kubernetes.io/" .) (hasPrefix "requests." .)) }}
{{- fail (printf "devices.types: kube-scheduler cannot ignore resource %s of type %s; give it another domain than kubernetes.io, not one that begins with \"requests.\", or have the nodes report it and set ignoredByScheduler to false" . $type.name) }}
{{- end }}
{{- $names = append $names . }}
{{- $taken = append $taken . }}
{{- end }}
{{- $types = append $types .name }}
{{- end }}
{{- $names | sortAlpha | toJson -}}
{{- end }}

{{/* The device resources that the reporter may state of its Node: all but those of vendors' device plugins that it does not mirror, as a JSON
list. */}}
{{- define "koordgate.reportedResources" -}}
{{- $names := include "koordgate.deviceResources" . | fromJsonArray }}
{{- range concat (include "koordgate.dialects" . | fromJson).plugins (include "koordgate.peers" . | fromJson).resources }}
{{- $names = without $names . }}
{{- end }}
{{- if include "koordgate.reporter.volcanoUnit" . }}
{{- $names = concat $names (list "volcano.sh/gpu-memory" "volcano.sh/gpu-number") }}
{{- end }}
{{- $names | toJson -}}
{{- end }}

{{/* Not empty if the scheduler is to ignore the resources of a configured type; takes the type. */}}
{{- define "koordgate.ignored" -}}
{{- if or (not (hasKey . "ignoredByScheduler")) .ignoredByScheduler }}true{{ end -}}
{{- end }}

{{/* The resources that kube-scheduler ignores, as a JSON list: those of configured types, and the number of devices that share a request, which
nobody counts. In kubernetes.io, where kube-scheduler ignores nothing, translated Pods do not request that number. */}}
{{- define "koordgate.ignoredResources" -}}
{{- $names := list }}
{{- if ne .Values.domain "kubernetes.io" }}
{{- $names = concat $names (get (include "koordgate.dialects" . | fromJson).splits .Values.domain) }}
{{- end }}
{{- range .Values.devices.types }}
{{- if include "koordgate.ignored" . }}
{{- $names = concat $names (include "koordgate.typeResources" . | fromJsonArray) }}
{{- end }}
{{- end }}
{{- $names | sortAlpha | toJson -}}
{{- end }}

{{/* The domain of the resources that only quotas count (allocator.vocabulary.names.QUOTA_DOMAIN). */}}
{{- define "koordgate.quotaDomain" -}}
quota.koordgate.io
{{- end }}

{{/* Not empty if Pods state what quotas are to count: the scheduler must ignore it. */}}
{{- define "koordgate.quota" -}}
{{- if and .Values.quota.enabled (or .Values.scheduler.enabled .Values.quota.ignoredByScheduler) }}true{{ end -}}
{{- end }}

{{/* The DRA drivers of our devices, and the types of these, as a JSON object; those that are set to null are left out. */}}
{{- define "koordgate.draDrivers" -}}
{{- $drivers := dict }}
{{- range $driver, $type := .Values.dra.drivers }}
{{- if $type }}
{{- $_ := set $drivers $driver $type }}
{{- end }}
{{- end }}
{{- $drivers | toJson -}}
{{- end }}

{{/* The namespaces in which koordgate does nothing, as a JSON list. */}}
{{- define "koordgate.exemptNamespaces" -}}
{{- concat (list "kube-system" .Release.Namespace) .Values.exemptNamespaces | uniq | sortAlpha | toJson -}}
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
{{- include "koordgate.givenSecret" . | default "koordgate-tls" -}}
{{- end }}

{{/* The Secret that holds the CA and the certificate of the extender's port; the settings' own default. */}}
{{- define "koordgate.extenderSecret" -}}
{{- include "koordgate.givenSecret" . | default "koordgate-extender-tls" -}}
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
  secretName: {{ include "koordgate.extenderSecret" . }}
  items:
    - {key: ca.crt, path: ca.crt}
{{- else if not (include "koordgate.givenSecret" .) -}}
secret:
  secretName: {{ include "koordgate.clientSecret" . }}
  optional: false
  defaultMode: 0440
  items:
    # Not ca.crt: in earlier releases that was a CA that is replaced after some months. The kubelet waits for this key.
    - {key: extender-ca.crt, path: ca.crt}
    - {key: tls.crt, path: tls.crt}
    - {key: tls.key, path: tls.key}
{{- else -}}
# The two certificates may come from different CAs. The CA of the webhook's certificate is the one to trust.
projected:
  defaultMode: 0440
  sources:
    - secret:
        name: {{ include "koordgate.secret" . }}
        items:
          - {key: ca.crt, path: ca.crt}
    - secret:
        name: {{ required "certificate.existingSecret is set: set certificate.existingClientSecret too, to a Secret with the scheduler's certificate, or scheduler.clientCertificates to false" (include "koordgate.givenClientSecret" .) }}
        items:
          - {key: tls.crt, path: tls.crt}
          - {key: tls.key, path: tls.key}
{{- end }}
{{- end }}

{{/* The host of a URL, an IPv6 address without its brackets. */}}
{{- define "koordgate.host" -}}
{{- (urlParse .).hostname -}}
{{- end }}

{{/* The extender's URL without a path: that of the Service, or one outside the cluster. */}}
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

{{/* The namespaces of a webhook: all but the exempt ones. The API server sets the label, and no tenant can change it. */}}
{{- define "koordgate.namespaceSelector" -}}
{{ include "koordgate.selectorWithout" (dict "root" . "namespaces" list) }}
{{- end }}

{{/* All namespaces but the exempt ones and some others; takes root and namespaces. */}}
{{- define "koordgate.selectorWithout" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
      {{- concat (include "koordgate.exemptNamespaces" .root | fromJsonArray) .namespaces | uniq | sortAlpha | toYaml | nindent 6 }}
{{- end }}

{{/* The namespaces in which koordgate enforces, which is one of the two modes below; takes the root. */}}
{{- define "koordgate.enforcedSelector" -}}
{{ include "koordgate.modeSelector" (dict "root" . "mode" "enforce") }}
{{- end }}

{{/* The namespaces that are only observed; takes the root. */}}
{{- define "koordgate.shadowSelector" -}}
{{ include "koordgate.modeSelector" (dict "root" . "mode" "shadow") }}
{{- end }}

{{/* The namespaces of a mode, without the exempt ones and some others; takes root, mode, and the others as namespaces. */}}
{{- define "koordgate.modeSelector" -}}
{{ include "koordgate.selectorWithout" (dict "root" .root "namespaces" (default list .namespaces)) }}
  {{- include "koordgate.inMode" . | nindent 2 }}
{{- end }}

{{/* A matchExpression: the namespace is in a mode, by its label or, where that states no known mode, by the value `mode`
(allocator.vocabulary.mode.mode_of); takes root and mode. */}}
{{- define "koordgate.inMode" -}}
- key: koordgate.io/mode
  {{- if eq .mode .root.Values.mode }}
  operator: NotIn
  values: {{ without (list "enforce" "off" "shadow") .mode | toJson }}
  {{- else }}
  operator: In
  values: [{{ .mode }}]
  {{- end }}
{{- end }}

{{/* The bindings of a policy about namespaced objects; takes root, name, action, paramRef and the namespaces that are exempt from it beside all
others. Where koordgate only observes, nobody is refused: a Deny becomes a warning and an annotation in the audit log. Their selectors stand here and
not in the policy, which the API server would read anew at each write of any object; here it does so only for what the policy is about. */}}
{{- define "koordgate.modePolicyBindings" -}}
{{- $enforced := include "koordgate.modeSelector" (merge (dict "mode" "enforce") .) }}
{{- $observed := include "koordgate.modeSelector" (merge (dict "mode" "shadow") .) }}
{{- $reported := ternary "Warn, Audit" .action (eq .action "Deny") }}
{{- include "koordgate.policyBinding" (merge (dict "selector" $enforced) .) }}
{{ include "koordgate.policyBinding" (merge (dict "selector" $observed "action" $reported "binding" (printf "%s-shadow" .name)) .) }}
{{- end }}

{{/* A binding of a policy; takes root, name, action, and where there are any its own name (binding), paramRef and a selector of namespaces. */}}
{{- define "koordgate.policyBinding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ default .name .binding }}
  labels:
    {{- include "koordgate.webhook.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  {{- with .paramRef }}
  paramRef:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  validationActions: [{{ .action }}]
  {{- with .selector }}
  matchResources:
    namespaceSelector:
      {{- . | nindent 6 }}
  {{- end }}
{{- end }}

{{/* CEL: the Pod does not mirror a static Pod of the kubelet that writes it (webhook.admission.validate.is_mirror). */}}
{{- define "koordgate.cel.noMirror" -}}
!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}) && object.spec.?nodeName.orValue('') != '' && request.userInfo.username == 'system:node:' + object.spec.nodeName && 'system:nodes' in request.userInfo.groups)
{{- end }}

{{/* CEL: iterating over a map takes the API server time in the square of its size (40,000 annotations: 4 s). A map larger than any sane Pod
has is therefore not iterated; the webhook inspects it. */}}
{{- define "koordgate.cel.mostAnnotations" -}}1000{{- end }}
{{- define "koordgate.cel.mostResources" -}}50{{- end }}

{{/* CEL: the annotation `key` states an allocation, so that only the bind may write it (allocator.vocabulary.names.is_allocation_annotation). */}}
{{- define "koordgate.cel.allocationKey" -}}
key in ['scheduling.koordinator.sh/device-allocated', 'scheduling.koordinator.sh/resource-status', 'koordgate.io/device-quotas'] || {{ include "koordgate.cel.visibleKey" . }} || {{ include "koordgate.cel.deliveryKey" . }}
{{- end }}

{{/* CEL: the annotations that are decided when a Pod is created, so that no later write and no Binding may bring them. */}}
{{- define "koordgate.cel.decidedKeys" -}}
'koordgate.io/original-request', 'koordgate.io/numa-scope', 'koordgate.io/device-sharing', 'koordgate.io/limits', 'koordgate.io/own-cpus'
{{- end }}

{{/* CEL: the annotation `key` may not change after the Pod's creation, or not as it likes: the hint decides what quotas count. */}}
{{- define "koordgate.cel.frozenKey" -}}
key in ['koordgate.io/original-request', 'koordgate.io/dialect', 'koordgate.io/numa-scope', 'koordgate.io/device-sharing', 'koordgate.io/limits', 'koordgate.io/own-cpus', 'scheduling.koordinator.sh/device-allocate-hint', 'scheduling.koordinator.sh/device-allocated', 'scheduling.koordinator.sh/resource-status', 'koordgate.io/device-quotas'] || {{ include "koordgate.cel.visibleKey" . }} ||
({{ include "koordgate.cel.deliveryKey" . }}) && !({{ include "koordgate.cel.byWriters" . }}) ||
{{ include "koordgate.cel.limitKey" . }} && has(oldObject.metadata.annotations) && 'koordgate.io/limits' in oldObject.metadata.annotations
{{- end }}

{{/* CEL: the annotation `key` shows a container its devices (GPUs, or those of the type before the first dot), or what it may use of them
(allocator.vocabulary.names.shown_by, device_quota, and what names.is_allocation_annotation has besides). */}}
{{- define "koordgate.cel.visibleKey" -}}
key.startsWith('visible-devices.koordgate.io/') || key.contains('.visible-devices.koordgate.io/') || key.contains('.device-quotas.koordgate.io/') ||
key.startsWith('nvidia-gpu-memory-limit.koordgate.io/') || key.startsWith('nvidia-gpu-memory-request.koordgate.io/') ||
key.startsWith('gpu-core-limit.koordgate.io/') || key.startsWith('nri.koordgate.io/') || key.startsWith('required-plugins.noderesource.dev/container.')
{{- end }}

{{/* CEL: software of the nodes that is not koordgate's shows a container devices by the annotation `key`
(allocator.vocabulary.names.is_delivery_annotation). */}}
{{- define "koordgate.cel.deliveryKey" -}}
key.startsWith('nvidia.cdi.k8s.io') || key.startsWith('cdi.k8s.io') || key.startsWith('nvidia.com/container.') && key.endsWith('.gpus.devices')
{{- end }}

{{/* CEL: the annotation `key` may state a memory limit to what keeps it, in a form in which authors may state their own; in a Pod whose limits
must be kept it may not change (allocator.vocabulary.limits.states_limit). */}}
{{- define "koordgate.cel.limitKey" -}}
key.startsWith('nvidia.com/container.')
{{- end }}

{{/* CEL: the request is made by another product that binds Pods. It may say by such annotations what its own Pods see. */}}
{{- define "koordgate.cel.byWriters" -}}
request.userInfo.username in {{ .Values.adopt.writers | toJson }}
{{- end }}

{{/* CEL: `resources` has one of these names; takes resources, names and, where a large map is to count as having one, most; with asked, an amount
of 0 does not count. */}}
{{- define "koordgate.cel.names" -}}
{{- $names := printf "['%s']" (join "', '" .names) -}}
has({{ .resources }}) && (
  {{- range $index, $key := list "requests" "limits" }}
  {{- $map := printf "%s.%s" $.resources $key }}
  {{ if $index }}|| {{ end }}has({{ $map }}) && ({{ with $.most }}size({{ $map }}) > {{ . }} || {{ end }}{{ $map }}.exists(name, {{ with $.asked }}{{ $map }}[name] != '0' && ({{ end }}name in {{ $names }}
    {{- range $.beginnings }} || name.startsWith('{{ . }}'){{ end }}{{ with $.asked }}){{ end }}))
  {{- end }}
)
{{- end }}

{{/* CEL: a container has one of these names; takes names and, as above, most, beginnings and asked. */}}
{{- define "koordgate.cel.containersName" -}}
object.spec.containers.exists(c, {{ include "koordgate.cel.names" (merge (dict "resources" "c.resources") .) }}) ||
has(object.spec.initContainers) && object.spec.initContainers.exists(c, {{ include "koordgate.cel.names" (merge (dict "resources" "c.resources") .) }})
{{- end }}

{{/* CEL: the annotation `key` names a container for which it asks; takes a list of beginnings and ends. */}}
{{- define "koordgate.cel.formKey" -}}
{{- $forms := list }}
{{- range . }}
{{- $forms = append $forms (printf "key.startsWith('%s') && key.endsWith('%s')" (index . 0) (index . 1)) }}
{{- end }}
{{- join " || " $forms -}}
{{- end }}

{{/* CEL: the Pod asks in one of these names, by one of these annotations, or in one of these forms of annotations; takes resources, annotations
and forms. A Pod with too many annotations asks in none of the forms: the caller lets it pass or not. */}}
{{- define "koordgate.cel.asksIn" -}}
{{- $asks := list }}
{{- if .resources }}
{{- $asks = append $asks (include "koordgate.cel.containersName" (dict "names" .resources)) }}
{{- end }}
{{- if .annotations }}
{{- $keys := list }}
{{- range .annotations }}
{{- $keys = append $keys (printf "'%s' in object.metadata.annotations" .) }}
{{- end }}
{{- $asks = append $asks (printf "has(object.metadata.annotations) && (%s)" (join " || " $keys)) }}
{{- end }}
{{- with .forms }}
{{- $most := include "koordgate.cel.mostAnnotations" . }}
{{- $asks = append $asks (printf "has(object.metadata.annotations) && size(object.metadata.annotations) <= %s && object.metadata.annotations.exists(key, %s)" $most (include "koordgate.cel.formKey" .)) }}
{{- end }}
{{- join " ||\n" $asks -}}
{{- end }}

{{/* CEL: the Pod requests a device, or claims to have one (allocator.request.devices.names_devices; admission refuses requests in the resources
of the Pod as a whole). */}}
{{- define "koordgate.cel.namesDevices" -}}
{{ include "koordgate.cel.devices" (dict "root" . "asked" false) }}
{{- end }}

{{/* CEL: the same, but an amount of 0, which a LimitRange gives to every container, asks for nothing. */}}
{{- define "koordgate.cel.asksForDevices" -}}
{{ include "koordgate.cel.devices" (dict "root" . "asked" true) }}
{{- end }}

{{/* What the two above have in common; takes root and asked. */}}
{{- define "koordgate.cel.devices" -}}
{{- $asked := .asked }}
{{- with .root }}
{{- $most := include "koordgate.cel.mostResources" . }}
{{- $names := include "koordgate.deviceResources" . | fromJsonArray }}
{{- include "koordgate.cel.containersName" (dict "names" $names "most" $most "asked" $asked) }} ||
{{ include "koordgate.cel.names" (dict "resources" "object.spec.resources" "names" $names "most" $most "asked" $asked) }} ||
{{- range (include "koordgate.peers" . | fromJson).scoped }}
request.namespace in ['{{ join "', '" .namespaces }}'] && ({{ include "koordgate.cel.asksIn" . }}) ||
{{- end }}
has(object.metadata.annotations) && (size(object.metadata.annotations) > {{ include "koordgate.cel.mostAnnotations" . }} ||
  {{- range include "koordgate.deviceAnnotations" . | fromJsonArray }}
  '{{ . }}' in object.metadata.annotations ||
  {{- end }}
  object.metadata.annotations.exists(key, {{ include "koordgate.cel.allocationKey" . }}{{ with (include "koordgate.peers" . | fromJson).forms }} || {{ include "koordgate.cel.formKey" . }}{{ end }}))
{{- end }}
{{- end }}

{{/* CEL: the Pod asks for devices in names that koordgate knows and does not read (allocator.request.unread). */}}
{{- define "koordgate.cel.unread" -}}
{{- $dialects := include "koordgate.dialects" . | fromJson }}
{{- include "koordgate.cel.containersName" (dict "names" $dialects.foreign "beginnings" $dialects.beginnings) }}
{{- $resources := list }}
{{- $annotations := list }}
{{- $forms := list }}
{{- range (include "koordgate.peers" . | fromJson).off }}
{{- if .namespaces }} ||
!(request.namespace in ['{{ join "', '" .namespaces }}']) && ({{ include "koordgate.cel.asksIn" . }})
{{- else }}
{{- $resources = concat $resources .resources }}
{{- $annotations = concat $annotations .annotations }}
{{- $forms = concat $forms .forms }}
{{- end }}
{{- end }}
{{- with include "koordgate.cel.asksIn" (dict "resources" (uniq $resources) "annotations" (uniq $annotations) "forms" $forms) }} ||
{{ . }}
{{- end }} ||
{{ include "koordgate.cel.misspelt" . }}
{{- end }}

{{/* CEL: the Pod has a resource, an annotation or a label that looks like koordgate's, and that nobody reads (allocator.request.misspelt). */}}
{{- define "koordgate.cel.misspelt" -}}
{{- $dialects := include "koordgate.dialects" . | fromJson }}
{{- $strange := printf "!(name in ['%s']) && (name.startsWith('%s'))" (join "', '" $dialects.known) (join "') || name.startsWith('" $dialects.domains) }}
{{- $asks := printf "has(c.resources) && (has(c.resources.requests) && c.resources.requests.exists(name, %s) || has(c.resources.limits) && c.resources.limits.exists(name, %s))" $strange $strange }}
{{- $ours := printf "(key.contains('%s'))" (join "') || key.contains('" $dialects.keys.domains) -}}
object.spec.containers.exists(c, {{ $asks }}) ||
has(object.spec.initContainers) && object.spec.initContainers.exists(c, {{ $asks }}) ||
has(object.metadata.annotations) && object.metadata.annotations.exists(key, {{ $ours }} && !(key in ['{{ join "', '" $dialects.keys.annotations }}']) &&
  !key.startsWith('gpu-memory-limit.koordgate.io/') && !({{ include "koordgate.cel.allocationKey" . }})) ||
has(object.metadata.labels) && object.metadata.labels.exists(key, {{ $ours }} && !(key in ['{{ join "', '" $dialects.keys.labels }}']))
{{- end }}

{{/* CEL: the Pod states something about its CPUs, or NUMA policies hold for it (allocator.request.cpus.names_cpus). */}}
{{- define "koordgate.cel.namesCPUs" -}}
!({{ include "koordgate.cel.qosClass" "object" }} in ['', 'SYSTEM']) ||
has(object.metadata.annotations) && (
  'scheduling.koordinator.sh/resource-spec' in object.metadata.annotations ||
  'scheduling.koordinator.sh/numa-topology-spec' in object.metadata.annotations ||
  'koordgate.io/numa-scope' in object.metadata.annotations ||
  'koordgate.io/own-cpus' in object.metadata.annotations
)
{{- end }}

{{/* CEL: one of our Pods (allocator.request.pod.is_ours), or one that claims to be. */}}
{{- define "koordgate.cel.ourPod" -}}
{{ include "koordgate.cel.namesCPUs" . }} ||
{{- with include "koordgate.cel.numaScope" . }}
{{ . }} ||
{{- end }}
{{ include "koordgate.cel.namesDevices" . }}
{{- end }}

{{/* CEL: the Pod is put under NUMA policies (webhook.admission.scope); empty if numa.scope names no Pod. The classes LSE, LSR,
LS and BE are in scope anyway, and SYSTEM never is. */}}
{{- define "koordgate.cel.numaScope" -}}
{{- $scope := .Values.numa.scope }}
{{- $named := list }}
{{- if $scope.scheduler }}
{{- $named = append $named (printf "has(object.spec.schedulerName) && object.spec.schedulerName == '%s' && !(has(object.spec.nodeName) && object.spec.nodeName != '')" .Values.scheduler.name) }}
{{- end }}
{{- if $scope.namespaces }}
{{- $named = append $named (printf "request.namespace in ['%s']" (join "', '" $scope.namespaces)) }}
{{- end }}
{{- if $scope.selector }}
{{- $labels := list "has(object.metadata.labels)" }}
{{- range $key, $value := $scope.selector }}
{{- $labels = append $labels (printf "'%s' in object.metadata.labels && object.metadata.labels['%s'] == '%s'" $key $key $value) }}
{{- end }}
{{- $named = append $named (join " && " $labels) }}
{{- end }}
{{- if $named -}}
({{ join " || " $named }}) && {{ include "koordgate.cel.qosClass" "object" }} == '' && (
  object.spec.containers.exists(c, {{ include "koordgate.cel.namesCPUOrMemory" "c.resources" }}) ||
  has(object.spec.initContainers) && object.spec.initContainers.exists(c, {{ include "koordgate.cel.namesCPUOrMemory" "c.resources" }}) ||
  {{ include "koordgate.cel.namesCPUOrMemory" "object.spec.resources" }}
)
{{- end }}
{{- end }}

{{/* CEL: these resources state CPU or memory; takes the resources. */}}
{{- define "koordgate.cel.namesCPUOrMemory" -}}
has({{ . }}) && (
  {{- range $index, $key := list "requests" "limits" }}
  {{- $map := printf "%s.%s" $ $key }}
  {{- if $index }} || {{ end }}has({{ $map }}) && ('cpu' in {{ $map }} || 'memory' in {{ $map }})
  {{- end }})
{{- end }}

{{/* CEL: the QoS class that a Pod is labelled with, '' for none; takes the Pod. */}}
{{- define "koordgate.cel.qosClass" -}}
(has({{ . }}.metadata.labels) && 'koordinator.sh/qosClass' in {{ . }}.metadata.labels ? {{ . }}.metadata.labels['koordinator.sh/qosClass'] : '')
{{- end }}

{{/* CEL: a Pod with CPUs of its own is resized in place. */}}
{{- define "koordgate.cel.resized" -}}
has(request.subResource) && request.subResource == 'resize' && {{ include "koordgate.cel.qosClass" "oldObject" }} in ['LSE', 'LSR']
{{- end }}

{{/* CEL: an annotation that may not be changed was added, changed or removed; or a Pod with CPUs of its own became one without, or the
other way round, or one of another class. */}}
{{- define "koordgate.cel.frozenChanged" -}}
has(object.metadata.annotations) && (size(object.metadata.annotations) > {{ include "koordgate.cel.mostAnnotations" . }} ||
  object.metadata.annotations.exists(key, ({{ include "koordgate.cel.frozenKey" . }}) &&
    !(has(oldObject.metadata.annotations) && key in oldObject.metadata.annotations && oldObject.metadata.annotations[key] == object.metadata.annotations[key]))) ||
has(oldObject.metadata.annotations) && (size(oldObject.metadata.annotations) > {{ include "koordgate.cel.mostAnnotations" . }} ||
  oldObject.metadata.annotations.exists(key, ({{ include "koordgate.cel.frozenKey" . }}) &&
    !(has(object.metadata.annotations) && key in object.metadata.annotations))) ||
{{ include "koordgate.cel.qosClass" "object" }} != {{ include "koordgate.cel.qosClass" "oldObject" }} &&
  ({{ include "koordgate.cel.qosClass" "object" }} in ['LSE', 'LSR'] || {{ include "koordgate.cel.qosClass" "oldObject" }} in ['LSE', 'LSR'])
{{- end }}

{{/* CEL: the Binding carries no allocation: every allocation has at least one of these annotations. */}}
{{- define "koordgate.cel.bindingWithoutAllocation" -}}
!has(object.metadata.annotations) ||
!('scheduling.koordinator.sh/device-allocated' in object.metadata.annotations || 'scheduling.koordinator.sh/resource-status' in object.metadata.annotations)
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
tolerations:
  {{- with .root.Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- range list "not-ready" "unreachable" }}
  - key: node.kubernetes.io/{{ . }}
    operator: Exists
    effect: NoExecute
    tolerationSeconds: {{ $.root.Values.nodeFailureSeconds | int64 }}
  {{- end }}
{{- with .root.Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  # Never two on one node while another node would take one: the death of a node must not take both. Nodes that do not
  # tolerate the Pod do not count, nor do the Pods of an earlier release, so that a roll-out can go on.
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: DoNotSchedule
    nodeTaintsPolicy: Honor
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- $.selector | nindent 8 }}
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $.selector | nindent 8 }}
{{- end }}
