{{/* The pods of shards. */}}

{{/*
A StatefulSet: of all shards, one shard per pod; with "shard" of the members of that one. Takes the role.
*/}}
{{- define "lightrail.shards" -}}
{{- $values := .values }}
{{- $labelled := semverCompare ">=1.28-0" .root.Capabilities.KubeVersion.Version }}
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ include "lightrail.roleName" . }}
  labels:
    {{- include "lightrail.labels" . | nindent 4 }}
spec:
  replicas: {{ ternary $values.members $values.replicas (hasKey . "shard") }}
  serviceName: {{ include "lightrail.fullname" .root }}-shard
  podManagementPolicy: Parallel
  minReadySeconds: 10 # between two restarts, transactions over several shards can commit
  updateStrategy:
    type: RollingUpdate
  {{- if $values.persistence.enabled }}
  persistentVolumeClaimRetentionPolicy:
    whenDeleted: {{ $values.persistence.whenDeleted }}
    whenScaled: {{ $values.persistence.whenScaled }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "lightrail.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "lightrail.podLabels" . | nindent 8 }}
      annotations:
        kubectl.kubernetes.io/default-container: shard
        {{- include "lightrail.checksums" .root | nindent 8 }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "lightrail.serviceAccountName" (dict "root" .root "account" "shard") }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      securityContext:
        {{- include "lightrail.podSecurity" . | nindent 8 }}
      {{- with include "lightrail.scheduling" . | trim }}{{ . | nindent 6 }}{{ end }}
      {{- with include "lightrail.shardAffinity" . | trim }}{{ . | nindent 6 }}{{ end }}
      {{- with include "lightrail.spread" . | trim }}{{ . | nindent 6 }}{{ end }}
      containers:
        - name: shard
          image: {{ include "lightrail.image" (dict "image" .root.Values.image "tag" .root.Chart.AppVersion) | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          {{- if hasKey . "shard" }}
          command: [lightrail]
          args: [shard, --id, {{ .shard | quote }}]
          {{- else }}
          # The number of the pod is the number of its shard, so a volume is always used under the same number.
          {{- if $labelled }}
          command: [lightrail]
          args: [shard, --id, $(SHARD_ID)]
          {{- else }}
          command: [sh, -c, 'exec lightrail shard --id "${POD_NAME##*-}"']
          {{- end }}
          {{- end }}
          env:
            {{- if and $labelled (not (hasKey . "shard")) }}
            - name: SHARD_ID
              valueFrom:
                fieldRef:
                  fieldPath: metadata.labels['apps.kubernetes.io/pod-index']
            {{- end }}
            {{- include "lightrail.env" . | nindent 12 }}
            {{- if hasKey . "shard" }}
            - name: LIGHTRAIL_REPLICAS
              value: {{ $values.members | quote }}
            - name: LIGHTRAIL_MIN_IN_SYNC
              value: {{ $values.minInSync | quote }}
            - name: LIGHTRAIL_REPLICA_HOST # an emptied volume replaces that of the same pod, on whatever node
              value: $(POD_NAME)
            {{- end }}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - {name: wire, containerPort: 5680}
            - {name: metrics, containerPort: 9464}
          {{- include "lightrail.probes" $values | nindent 10 }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          securityContext:
            {{- include "lightrail.containerSecurity" . | nindent 12 }}
          volumeMounts:
            {{- include "lightrail.mounts" . | nindent 12 }}
      volumes:
        {{- if not $values.persistence.enabled }}
        - name: data
          emptyDir: {}
        {{- end }}
        {{- include "lightrail.volumes" . | nindent 8 }}
  {{- if $values.persistence.enabled }}
  volumeClaimTemplates:
    - {{ include "lightrail.claim" (dict "role" . "persistence" $values.persistence) | indent 6 | trim }}
  {{- end }}
{{- end }}
