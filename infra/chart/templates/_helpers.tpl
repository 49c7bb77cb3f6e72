{{/* The prefix of every name. */}}
{{- define "journeyman.fullname" -}}
{{- default (default .Release.Name .Values.nameOverride) .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "journeyman.labels" -}}
app.kubernetes.io/part-of: journeyman
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* API groups of the cloud's NodeClasses, and their plural. */}}
{{- define "journeyman.nodeclass.groups" -}}
{{- if eq .Values.cloud "alibaba" }}[karpenter.k8s.alibabacloud, karpenter.alibabacloud.com]
{{- else if eq .Values.cloud "huawei" }}[karpenter.k8s.huawei]
{{- else }}[karpenter.k8s.aws]{{ end -}}
{{- end -}}

{{- define "journeyman.nodeclass.plural" -}}
{{- if eq .Values.cloud "alibaba" }}ecsnodeclasses{{ else if eq .Values.cloud "huawei" }}ccenodeclasses{{ else }}ec2nodeclasses{{ end -}}
{{- end -}}

{{- define "journeyman.forwarder.name" -}}
{{- printf "%s-forwarder" (include "journeyman.fullname" .) -}}
{{- end -}}

{{- define "journeyman.forwarder.serviceAccount" -}}
{{- default (include "journeyman.forwarder.name" .) .Values.forwarder.serviceAccount.name -}}
{{- end -}}

{{/* The forwarder's immutable labels, for selectors. */}}
{{- define "journeyman.forwarder.selector" -}}
app.kubernetes.io/name: forwarder
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "journeyman.forwarder.image" -}}
{{- $image := .Values.forwarder.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Subjects of a binding: users and groups have RBAC's API group, service accounts a namespace. */}}
{{- define "journeyman.subjects" -}}
{{- range . }}
- kind: {{ .kind }}
  name: {{ .name | quote }}
  {{- if eq .kind "ServiceAccount" }}
  namespace: {{ .namespace }}
  {{- else }}
  apiGroup: rbac.authorization.k8s.io
  {{- end }}
{{- end }}
{{- end -}}

{{/* The forwarder's environment; infra/forwarder/settings.py reads it. */}}
{{- define "journeyman.forwarder.settings" -}}
{{- $sink := .Values.forwarder.sink -}}
- {name: CLUSTER_NAME, value: {{ .Values.forwarder.clusterName | quote }}}
- {name: CLOUD, value: {{ .Values.cloud }}}
- {name: SINK, value: {{ $sink.kind }}}
{{- if eq $sink.kind "sqs" }}
- {name: PROVISION_QUEUE_URL, value: {{ $sink.queues.provision | quote }}}
- {name: TERMINATE_QUEUE_URL, value: {{ $sink.queues.terminate | quote }}}
{{- else if eq $sink.kind "eventbridge" }}
- {name: EVENT_BUS, value: {{ $sink.eventBus | quote }}}
{{- else }}
- {name: RECEIVER_URL, value: {{ $sink.receiver.url | quote }}}
- {name: RECEIVER_TOKEN_FILE, value: /var/run/secrets/journeyman/token}
{{- if $sink.receiver.caConfigMap }}
- {name: RECEIVER_CA_FILE, value: /etc/journeyman/ca.crt}
{{- end }}
{{- end }}
{{- with $sink.region }}
- {name: AWS_REGION, value: {{ . | quote }}}
{{- end }}
- {name: BATCH_IDLE_DURATION, value: {{ .Values.forwarder.batch.idle | quote }}}
- {name: BATCH_MAX_DURATION, value: {{ .Values.forwarder.batch.max | quote }}}
- {name: PORT, value: "8081"}
- {name: LOG_LEVEL, value: {{ .Values.forwarder.logLevel }}}
{{- end -}}
