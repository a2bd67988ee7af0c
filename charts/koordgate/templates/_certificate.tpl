{{/* The Secret with a certificate that somebody else makes, an administrator or cert-manager; empty: the webhook makes its own. */}}
{{- define "koordgate.givenSecret" -}}
{{- if .Values.certificate.certManager.enabled }}koordgate-cert{{ else }}{{ .Values.certificate.existingSecret }}{{ end -}}
{{- end }}

{{/* The same for the scheduler's certificate. */}}
{{- define "koordgate.givenClientSecret" -}}
{{- if not .Values.certificate.certManager.enabled }}{{ .Values.certificate.existingClientSecret }}
{{- else if .Values.scheduler.clientCertificates }}koord-scheduler-cert{{ end -}}
{{- end }}

{{/* Annotations of both webhook configurations: cert-manager puts its CA in, unless it is stated. */}}
{{- define "koordgate.webhookAnnotations" -}}
{{- $annotations := .Values.webhook.annotations }}
{{- if and .Values.certificate.certManager.enabled (not .Values.webhook.caBundle) }}
{{- $annotations = merge (dict) $annotations (dict "cert-manager.io/inject-ca-from" (printf "%s/koordgate" .Release.Namespace)) }}
{{- end }}
{{- with $annotations }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* The names and addresses that the webhook's certificate is for, as JSON: `dnsNames` and `ipAddresses`. */}}
{{- define "koordgate.certificateNames" -}}
{{- $dnsNames := list "koordgate" }}
{{- range list "" ".svc" ".svc.cluster.local" }}
{{- $dnsNames = append $dnsNames (printf "koordgate.%s%s" $.Release.Namespace .) }}
{{- end }}
{{- $dnsNames = concat $dnsNames .Values.certificate.extraDNSNames }}
{{- $addresses := list }}
{{- range compact (list .Values.webhook.externalURL .Values.webhook.externalExtenderURL) }}
{{- $host := include "koordgate.host" . }}
{{- if or (regexMatch "^[0-9]{1,3}([.][0-9]{1,3}){3}$" $host) (contains ":" $host) }}
{{- $addresses = append $addresses $host }}
{{- else }}
{{- $dnsNames = append $dnsNames $host }}
{{- end }}
{{- end }}
{{- dict "dnsNames" ($dnsNames | uniq) "ipAddresses" ($addresses | uniq) | toJson }}
{{- end }}
