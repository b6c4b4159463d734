{{/* Common parts of the pods of all roles. */}}

{{/* lightrail.toml. Numbers of values are floats here: a large one would be printed as 1e+06. */}}
{{- define "lightrail.toml" -}}
# Written by the Helm chart from the values below `config`.
{{- range $key, $value := .Values.config }}
{{- if kindIs "bool" $value }}
{{ $key }} = {{ $value }}
{{- else if kindIs "string" $value }}
{{ $key }} = {{ toJson $value }}
{{- else if not (kindIs "invalid" $value) }}
{{ $key }} = {{ int64 $value }}
{{- end }}
{{- end }}
{{ end -}}

{{- define "lightrail.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "lightrail.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Scheduling of pods. Takes (dict "root" $ "values" VALUES-OF-THE-ROLE). */}}
{{- define "lightrail.scheduling" -}}
{{- with .root.Values.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "lightrail.affinity" -}}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
Affinity of the pods of shards: members of one shard lie on different nodes, unless the values have another
podAntiAffinity. Takes (dict "root" $ "component" NAME "values" VALUES), and "shard" where shards have members.
*/}}
{{- define "lightrail.shardAffinity" -}}
{{- $affinity := deepCopy .values.affinity -}}
{{- if and .shard (not (hasKey $affinity "podAntiAffinity")) -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "lightrail.selector" . | fromYaml)) -}}
{{- if eq .values.antiAffinity "required" -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term)) -}}
{{- else -}}
{{- $_ := set $affinity "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) -}}
{{- end -}}
{{- end -}}
{{ include "lightrail.affinity" (dict "values" (dict "affinity" $affinity)) }}
{{- end -}}

{{/*
Spreads pods over zones and hosts; over zones the members of each shard. Takes (dict "root" $ "component" NAME
"values" VALUES).
*/}}
{{- define "lightrail.spread" -}}
{{- $keys := dict "zones" "topology.kubernetes.io/zone" "hosts" "kubernetes.io/hostname" -}}
{{- $wanted := list -}}
{{- range $what := list "zones" "hosts" -}}
{{- $how := index $.values.spread $what -}}
{{- if ne $how "none" }}{{ $wanted = append $wanted (dict "key" (index $keys $what) "how" $how) }}{{ end -}}
{{- end -}}
{{- if $wanted }}
topologySpreadConstraints:
  {{- range $wanted }}
  - maxSkew: 1
    topologyKey: {{ .key }}
    whenUnsatisfiable: {{ .how }}
    labelSelector:
      matchLabels:
        {{- include "lightrail.selector" (eq .key $keys.zones | ternary $ (omit $ "shard")) | nindent 8 }}
    {{- if and (ne $.component "shard") (semverCompare ">=1.27-0" $.root.Capabilities.KubeVersion.Version) }}
    matchLabelKeys: [pod-template-hash]
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* HOST:PORT,... of etcd; of the release's etcd the service, whose address outlives the members' pods. */}}
{{- define "lightrail.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- printf "%s-etcd.%s.svc:2379" (include "lightrail.fullname" .) .Release.Namespace -}}
{{- else -}}
{{- join "," .Values.etcd.external.endpoints -}}
{{- end -}}
{{- end -}}

{{/* Environment of all processes that connect to etcd. */}}
{{- define "lightrail.etcdEnv" -}}
- name: LIGHTRAIL_ETCD
  value: {{ include "lightrail.etcdEndpoints" . | quote }}
- name: LIGHTRAIL_CLUSTER
  value: {{ .Values.cluster | quote }}
{{- if not .Values.etcd.enabled }}
{{- with .Values.etcd.external }}
{{- if .tls.secret }}
- name: LIGHTRAIL_ETCD_CA
  value: /etc/lightrail/etcd/ca.crt
{{- if .tls.clientCertificate }}
- name: LIGHTRAIL_ETCD_CERTIFICATE
  value: /etc/lightrail/etcd/tls.crt
- name: LIGHTRAIL_ETCD_KEY
  value: /etc/lightrail/etcd/tls.key
{{- end }}
{{- end }}
{{- if .user }}
- name: LIGHTRAIL_ETCD_USER
  value: {{ .user | quote }}
- name: LIGHTRAIL_ETCD_PASSWORD_FILE
  value: /etc/lightrail/etcd-password/password
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "lightrail.etcdMounts" -}}
{{- if not .Values.etcd.enabled }}
{{- if .Values.etcd.external.tls.secret }}
- name: etcd-tls
  mountPath: /etc/lightrail/etcd
  readOnly: true
{{- end }}
{{- if .Values.etcd.external.user }}
- name: etcd-password
  mountPath: /etc/lightrail/etcd-password
  readOnly: true
{{- end }}
{{- end }}
{{- end -}}

{{- define "lightrail.etcdVolumes" -}}
{{- if not .Values.etcd.enabled }}
{{- if .Values.etcd.external.tls.secret }}
- name: etcd-tls
  secret:
    secretName: {{ .Values.etcd.external.tls.secret }}
    defaultMode: 0440
{{- end }}
{{- if .Values.etcd.external.user }}
- name: etcd-password
  secret:
    secretName: {{ .Values.etcd.external.passwordSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end -}}

{{/* Environment of the processes. Takes (dict "root" $ "component" NAME "values" VALUES). */}}
{{- define "lightrail.env" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: LIGHTRAIL_CONFIG
  value: /etc/lightrail/config/lightrail.toml
- name: LIGHTRAIL_DATA
  value: /var/lib/lightrail
- name: LIGHTRAIL_METRICS
  value: 0.0.0.0:9464
- name: LIGHTRAIL_WIRE
  value: 0.0.0.0:5680
- name: LIGHTRAIL_ADVERTISE
  {{- if eq .component "shard" }}
  value: $(POD_NAME).{{ include "lightrail.fullname" .root }}-shard.{{ .root.Release.Namespace }}.svc
  {{- else }}
  value: $(POD_IP)
  {{- end }}
{{- if .root.Values.wire.encrypted }}
- name: LIGHTRAIL_WIRE_KEY
  value: /etc/lightrail/wire/wire.key
{{- else }}
- name: LIGHTRAIL_INSECURE_WIRE
  value: "true"
{{- end }}
{{- if semverCompare ">=1.35-0" .root.Capabilities.KubeVersion.Version }}
- name: LIGHTRAIL_ZONE # Kubernetes gives pods their node's zone from 1.35 on
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['topology.kubernetes.io/zone']
{{- end }}
{{ include "lightrail.etcdEnv" .root }}
{{- end -}}

{{/* Paths of the certificate, for processes that serve TLS. */}}
{{- define "lightrail.tlsEnv" -}}
{{- if ne .Values.tls.source "none" }}
- name: LIGHTRAIL_TLS_CERTIFICATE
  value: /etc/lightrail/tls/tls.crt
- name: LIGHTRAIL_TLS_KEY
  value: /etc/lightrail/tls/tls.key
{{- if .Values.tls.clientCaSecret }}
- name: LIGHTRAIL_TLS_CLIENT_CA
  value: /etc/lightrail/client-ca/ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{/* Mounts of every process; with TLS for "serves". Takes (dict "root" $ "serves" BOOL). */}}
{{- define "lightrail.mounts" -}}
- name: config
  mountPath: /etc/lightrail/config
  readOnly: true
- name: data
  mountPath: /var/lib/lightrail
- name: tmp
  mountPath: /tmp
{{- if .root.Values.wire.encrypted }}
- name: wire
  mountPath: /etc/lightrail/wire
  readOnly: true
{{- end }}
{{- if and .serves (ne .root.Values.tls.source "none") }}
- name: tls
  mountPath: /etc/lightrail/tls
  readOnly: true
{{- if .root.Values.tls.clientCaSecret }}
- name: client-ca
  mountPath: /etc/lightrail/client-ca
  readOnly: true
{{- end }}
{{- end }}
{{- with include "lightrail.etcdMounts" .root | trim }}
{{ . }}
{{- end }}
{{- end -}}

{{/* The volumes of these mounts except `data`, which each role defines. */}}
{{- define "lightrail.volumes" -}}
- name: config
  configMap:
    name: {{ include "lightrail.fullname" .root }}-config
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- if .root.Values.wire.encrypted }}
- name: wire
  secret:
    secretName: {{ include "lightrail.wireSecret" .root }}
    defaultMode: 0440
{{- end }}
{{- if and .serves (ne .root.Values.tls.source "none") }}
- name: tls
  secret:
    secretName: {{ include "lightrail.tlsSecret" .root }}
    defaultMode: 0440
{{- if .root.Values.tls.clientCaSecret }}
- name: client-ca
  secret:
    secretName: {{ .root.Values.tls.clientCaSecret }}
    items: [{key: ca.crt, path: ca.crt}]
    defaultMode: 0440
{{- end }}
{{- end }}
{{- with include "lightrail.etcdVolumes" .root | trim }}
{{ . }}
{{- end }}
{{- end -}}

{{/*
Probes. /healthz answers as long as its loop runs, also without etcd; a process is restarted only
when that stops. Takes VALUES-OF-THE-ROLE.
*/}}
{{- define "lightrail.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ max 1 (div (int .startupSecondsMax) 5) }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{/* A PodDisruptionBudget. Takes (dict "root" $ "component" NAME "values" VALUES). */}}
{{- define "lightrail.pdb" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "lightrail.roleName" . }}
  labels:
    {{- include "lightrail.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .values.pdb.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "lightrail.selector" . | nindent 6 }}
{{- end -}}

{{/* The fields of a Service for access from outside of the cluster. Takes the role's `service`. */}}
{{- define "lightrail.serviceReach" -}}
type: {{ .type }}
{{- if eq .type "LoadBalancer" }}
{{- with .loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with .loadBalancerSourceRanges }}
loadBalancerSourceRanges:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- if and .externalTrafficPolicy (ne .type "ClusterIP") }}
externalTrafficPolicy: {{ .externalTrafficPolicy }}
{{- end }}
{{- end -}}

{{/* The claim of a StatefulSet's pod. Takes (dict "role" (dict "root" $ "component" NAME) "persistence" VALUES). */}}
{{- define "lightrail.claim" -}}
metadata:
  name: data
  labels:
    {{- include "lightrail.selector" .role | nindent 4 }}
  {{- with .persistence.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  accessModes:
    {{- toYaml .persistence.accessModes | nindent 4 }}
  {{- with .persistence.storageClass }}
  storageClassName: {{ ternary "" . (eq . "-") | quote }}
  {{- end }}
  resources:
    requests:
      storage: {{ .persistence.size | quote }}
{{- end -}}
