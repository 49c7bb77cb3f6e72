{{/*
What each step does to the API server, and nothing else: tests run every step under exactly these rules, and fail on any
request that is refused and on any right that is never used.

Writes are merge patches; nothing is ever updated whole. `get` is asked of single objects only where a write needs the
object as it is at that moment. What there may be many of is listed once, and then watched from there.
*/}}

{{/* Reading a cluster whole: to plan, and to show a plan. */}}
{{- define "journeyman.rules.everything" -}}
- apiGroups: [""]
  resources: [pods, nodes, namespaces, persistentvolumes, persistentvolumeclaims]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [daemonsets]
  verbs: [list, watch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch]
- apiGroups: [storage.k8s.io]
  resources: [storageclasses, csinodes]
  verbs: [list, watch]
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [list, watch]
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [list]
- apiGroups: [karpenter.k8s.aws]
  resources: [ec2nodeclasses]
  verbs: [list]
- apiGroups: [journeyman.dev]
  resources: [nodedisruptions, offeringstates]
  verbs: [list]
{{- if .Values.features.nodeOverlay }}
- apiGroups: [karpenter.sh]
  resources: [nodeoverlays]
  verbs: [list]
{{- end }}
{{- if .Values.features.capacityBuffer }}
- apiGroups: [autoscaling.x-k8s.io]
  resources: [capacitybuffers]
  verbs: [list]
- apiGroups: [""]
  resources: [podtemplates]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [list, watch]
{{- end }}
{{- if or .Values.features.capacityBuffer .Values.features.defaultSpread }}
- apiGroups: [apps]
  resources: [replicasets, statefulsets]
  verbs: [list, watch]
{{- end }}
{{- if .Values.features.defaultSpread }}
- apiGroups: [""]
  resources: [services, replicationcontrollers]
  verbs: [list, watch]
{{- end }}
{{- if .Values.features.dynamicResourceAllocation }}
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims, resourceslices, deviceclasses]
  verbs: [list, watch]
{{- end }}
{{- end -}}

{{/* Kubernetes Events: about pods they are in any namespace, about nodes and NodePools in `default`. */}}
{{- define "journeyman.rules.events" -}}
- apiGroups: [""]
  resources: [events]
  verbs: [get, create, patch]
{{- end -}}

{{/* Opening nodes: the claim before its instance, and what was out of stock. */}}
{{- define "journeyman.rules.launching" -}}
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [get, create, patch, delete] # get: whether one of that name is ours; delete: nothing could be launched for it
- apiGroups: [karpenter.sh]
  resources: [nodeclaims/status]
  verbs: [patch]
{{ include "journeyman.rules.remembering" . }}
{{- end -}}

{{- define "journeyman.rules.remembering" -}}
- apiGroups: [journeyman.dev]
  resources: [offeringstates]
  verbs: [create, patch]
- apiGroups: [journeyman.dev]
  resources: [offeringstates/status]
  verbs: [patch]
{{- end -}}

{{- define "journeyman.rules.provision" -}}
{{ include "journeyman.rules.everything" . }}
{{ include "journeyman.rules.events" . }}
{{ include "journeyman.rules.launching" . }}
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [get, patch] # get: its limits as they are now
- apiGroups: [karpenter.sh]
  resources: [nodepools/status]
  verbs: [patch]
- apiGroups: [karpenter.k8s.aws]
  resources: [ec2nodeclasses, ec2nodeclasses/status] # the finalizer, and what its selectors mean
  verbs: [patch]
- apiGroups: [""]
  resources: [nodes] # labels and taints at registration
  verbs: [patch]
- apiGroups: [""]
  resources: [pods/status] # pod nomination: status.nominatedNodeName
  verbs: [patch]
{{- if .Values.features.nodeOverlay }}
- apiGroups: [karpenter.sh]
  resources: [nodeoverlays/status]
  verbs: [patch]
{{- end }}
{{- if .Values.features.capacityBuffer }}
- apiGroups: [autoscaling.x-k8s.io]
  resources: [capacitybuffers/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{- define "journeyman.rules.terminate" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete] # delete: past a NodeClaim's terminationGracePeriod only
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch, patch, delete]
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments] # a drained node's volumes are waited for
  verbs: [list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims] # whose volumes they are
  verbs: [list, watch]
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [list]
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [get, list, watch, patch, delete] # get: whether an instance's claim is there after all
- apiGroups: [karpenter.sh]
  resources: [nodeclaims/status, nodepools/status]
  verbs: [patch]
{{ include "journeyman.rules.events" . }}
{{- end -}}

{{- define "journeyman.rules.consolidate" -}}
{{ include "journeyman.rules.everything" . }}
{{ include "journeyman.rules.events" . }}
{{ include "journeyman.rules.launching" . }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [patch]
- apiGroups: [journeyman.dev]
  resources: [nodedisruptions]
  verbs: [get, create, delete] # get: whether one of that name is ours; delete: history
- apiGroups: [journeyman.dev]
  resources: [nodedisruptions/status]
  verbs: [patch]
{{- end -}}

{{- define "journeyman.rules.interrupt" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch, patch]
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [list, watch, patch, delete] # patch: that a rebalance was recommended
- apiGroups: [karpenter.sh]
  resources: [nodepools] # whether they want to be rebalanced
  verbs: [list]
{{ include "journeyman.rules.remembering" . }}
{{ include "journeyman.rules.events" . }}
{{- end -}}

{{/* Looks at little and writes nothing. */}}
{{- define "journeyman.rules.sweep" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [list, watch]
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [list]
- apiGroups: [karpenter.k8s.aws]
  resources: [ec2nodeclasses]
  verbs: [list]
{{- if .Values.features.capacityBuffer }}
- apiGroups: [autoscaling.x-k8s.io]
  resources: [capacitybuffers]
  verbs: [list]
{{- end }}
{{- end -}}

{{- define "journeyman.rules.api" -}}
{{ include "journeyman.rules.everything" . }}
{{- if and .Values.forwarder.enabled (eq .Values.forwarder.sink.kind "https") }}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews] # is it really our forwarder that sends?
  verbs: [create]
{{- end }}
{{- end -}}
