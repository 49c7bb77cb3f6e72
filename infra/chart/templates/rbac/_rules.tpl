{{/*
Exactly the requests that each step makes: tests run every step under these rules, and fail if a request is forbidden or a
permission is unused.

Writes are merge patches, never updates. `get` is used where a write depends on the current state of one object. Large
lists are read once, and then watched from their resource version.
*/}}

{{/* Reading the whole cluster, for scheduling. */}}
{{- define "journeyman.rules.scheduling" -}}
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
- apiGroups: {{ include "journeyman.nodeclass.groups" . }}
  resources: [{{ include "journeyman.nodeclass.plural" . }}]
  verbs: [list]
- apiGroups: [journeyman.dev]
  resources: [nodedisruptions, fleetplans, offeringstates, churnledgers]
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

{{/* Kubernetes Events: in the pod's namespace, or in `default` for nodes, NodeClaims and NodePools. */}}
{{- define "journeyman.rules.events" -}}
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch] # list: repeats of an Event by its name, or of all Events of a reason
{{- end -}}

{{/* Launching nodes: NodeClaims and unavailable offerings. */}}
{{- define "journeyman.rules.nodeclaims" -}}
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [get, create, patch, delete] # get: whether an existing one of that name is ours; delete: its launch failed
- apiGroups: [karpenter.sh]
  resources: [nodeclaims/status]
  verbs: [patch]
{{ include "journeyman.rules.unavailableofferings" . }}
{{- end -}}

{{- define "journeyman.rules.unavailableofferings" -}}
- apiGroups: [journeyman.dev]
  resources: [offeringstates]
  verbs: [create, patch]
- apiGroups: [journeyman.dev]
  resources: [offeringstates/status]
  verbs: [patch]
{{- end -}}

{{- define "journeyman.rules.provision" -}}
{{ include "journeyman.rules.scheduling" . }}
{{ include "journeyman.rules.events" . }}
{{ include "journeyman.rules.nodeclaims" . }}
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [get, patch] # get: its current limits
- apiGroups: [karpenter.sh]
  resources: [nodepools/status]
  verbs: [patch]
- apiGroups: {{ include "journeyman.nodeclass.groups" . }}
  resources: [{{ include "journeyman.nodeclass.plural" . }}, {{ include "journeyman.nodeclass.plural" . }}/status] # the finalizer, and the status of its selectors
  verbs: [patch]
- apiGroups: [""]
  resources: [nodes] # labels and taints at registration
  verbs: [patch]
- apiGroups: [journeyman.dev]
  resources: [churnledgers] # launches that were not used
  verbs: [get, create] # get: whether an existing one of that name is ours
- apiGroups: [journeyman.dev]
  resources: [churnledgers/status]
  verbs: [patch]
{{- if .Values.features.podNomination }}
- apiGroups: [""]
  resources: [pods/status] # pod nomination: status.nominatedNodeName
  verbs: [patch]
{{- end }}
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
  resources: [namespaces]
  resourceNames: [kube-system] # its UID identifies the cluster: instances of another cluster of this name are left alone
  verbs: [get]
- apiGroups: [journeyman.dev]
  resources: [fleetguards]
  verbs: [list, get, create] # get: whether an existing one of that name is ours
- apiGroups: [journeyman.dev]
  resources: [fleetguards/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete] # delete: only to keep a NodeClaim's terminationGracePeriod
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch, patch, delete]
- apiGroups: [storage.k8s.io]
  resources: [volumeattachments] # termination waits until volumes are detached
  verbs: [list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims] # the pods' volumes
  verbs: [list, watch]
- apiGroups: [karpenter.sh]
  resources: [nodepools]
  verbs: [list]
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [get, list, watch, create, patch, delete] # get: garbage collection checks whether an instance has a NodeClaim; create: one that was wiped
- apiGroups: [karpenter.sh]
  resources: [nodeclaims/status, nodepools/status]
  verbs: [patch]
{{ include "journeyman.rules.events" . }}
{{- end -}}

{{- define "journeyman.rules.consolidate" -}}
{{ include "journeyman.rules.scheduling" . }}
{{ include "journeyman.rules.events" . }}
{{ include "journeyman.rules.nodeclaims" . }}
- apiGroups: [""]
  resources: [nodes]
  verbs: [patch]
{{- if .Values.features.podDeletionCostManagement }}
- apiGroups: [""]
  resources: [pods] # the annotations of their deletion cost
  verbs: [patch]
{{- end }}
- apiGroups: [journeyman.dev]
  resources: [nodedisruptions, fleetplans]
  verbs: [get, create, delete] # get: whether an existing one of that name is ours; delete: history
- apiGroups: [journeyman.dev]
  resources: [nodedisruptions/status, fleetplans/status, churnledgers/status]
  verbs: [patch]
- apiGroups: [journeyman.dev]
  resources: [churnledgers]
  verbs: [get, create] # get: whether an existing one of that name is ours
{{- end -}}

{{- define "journeyman.rules.interrupt" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch, patch]
- apiGroups: [karpenter.sh]
  resources: [nodeclaims]
  verbs: [list, watch, patch, delete] # patch: the annotation of a rebalance recommendation
- apiGroups: [karpenter.sh]
  resources: [nodepools] # list: their annotation journeyman.dev/rebalance; patch: the state of alarms that pause disruption
  verbs: [list, patch]
{{ include "journeyman.rules.unavailableofferings" . }}
{{ include "journeyman.rules.events" . }}
{{- end -}}

{{/* Reads what shows whether a step is due, and writes nothing. */}}
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
- apiGroups: {{ include "journeyman.nodeclass.groups" . }}
  resources: [{{ include "journeyman.nodeclass.plural" . }}]
  verbs: [list]
{{- if .Values.features.capacityBuffer }}
- apiGroups: [autoscaling.x-k8s.io]
  resources: [capacitybuffers]
  verbs: [list]
{{- end }}
{{- end -}}

{{- define "journeyman.rules.api" -}}
{{ include "journeyman.rules.scheduling" . }}
{{- if and .Values.forwarder.enabled (eq .Values.forwarder.sink.kind "https") }}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews] # authenticates the forwarder
  verbs: [create]
{{- end }}
{{- end -}}
