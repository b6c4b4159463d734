{{/* Pods that run to their end: users, hooks, tests. */}}

{{/* Fields of the pod except its containers. Takes (dict "root" $ "component" NAME "values" VALUES-OF-JOBS). */}}
{{- define "lightrail.jobPod" -}}
restartPolicy: {{ .restart }}
serviceAccountName: {{ include "lightrail.serviceAccountName" (dict "root" .root "account" "jobs") }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "lightrail.podSecurity" . | nindent 2 }}
{{- with include "lightrail.scheduling" . | trim }}
{{ . }}
{{- end }}
{{- with include "lightrail.affinity" . | trim }}
{{ . }}
{{- end }}
{{- end -}}

{{/* A container except its command and environment. Takes the same and "name". */}}
{{- define "lightrail.jobContainer" -}}
name: {{ .name }}
image: {{ include "lightrail.image" (dict "image" .root.Values.image "tag" .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
resources:
  {{- toYaml .values.resources | nindent 2 }}
securityContext:
  {{- include "lightrail.containerSecurity" . | nindent 2 }}
{{- end -}}

{{/* Address of the gateway and user for lightrail-admin. */}}
{{- define "lightrail.operatorEnv" -}}
- name: LIGHTRAIL_URL
  value: {{ include "lightrail.gatewayUrl" . | quote }}
- name: LIGHTRAIL_USER
  value: {{ .Values.users.operator | quote }}
- name: LIGHTRAIL_PASSWORD_FILE
  value: /etc/lightrail/operator/password
{{- end -}}

{{- define "lightrail.operatorMounts" -}}
- name: operator
  mountPath: /etc/lightrail/operator
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if ne .Values.tls.source "none" }}
- name: authority
  mountPath: /etc/lightrail/authority
  readOnly: true
{{- end }}
{{- end -}}

{{/* The password of one user, and the certificate of the authority, without its key. */}}
{{- define "lightrail.operatorVolumes" -}}
- name: operator
  secret:
    secretName: {{ include "lightrail.usersSecret" . }}
    items: [{key: {{ .Values.users.operator | quote }}, path: password}]
    defaultMode: 0440
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- if ne .Values.tls.source "none" }}
- name: authority
  secret:
    secretName: {{ include "lightrail.tlsSecret" . }}
    items: [{key: ca.crt, path: ca.crt}]
    optional: true # a certificate of a public authority comes without
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* A shell script with a function for requests to the gateway, followed by the given text. */}}
{{- define "lightrail.adminShell" -}}
set -eu
admin() {
  if [ -s /etc/lightrail/authority/ca.crt ]; then
    lightrail-admin --ca /etc/lightrail/authority/ca.crt "$@"
  else
    lightrail-admin "$@"
  fi
}
{{- end -}}

{{/*
A hook that asks the gateway: a Job. Takes (dict "root" $ "name" NAME "hook" HOOK "weight" N "script" SHELL) and
"waits", whether all shards have to be ready before.
*/}}
{{- define "lightrail.hook" -}}
{{- $role := dict "root" .root "component" "jobs" "values" .root.Values.jobs "restart" "OnFailure" -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "lightrail.fullname" .root }}-{{ .name }}
  labels:
    {{- include "lightrail.labels" $role | nindent 4 }}
  annotations:
    helm.sh/hook: {{ .hook }}
    helm.sh/hook-weight: {{ .weight | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  backoffLimit: 10
  activeDeadlineSeconds: {{ .root.Values.jobs.timeoutSeconds }}
  template:
    metadata:
      labels:
        {{- include "lightrail.podLabels" $role | nindent 8 }}
      {{- with .root.Values.jobs.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      {{- include "lightrail.jobPod" $role | nindent 6 }}
      {{- if .waits }}
      initContainers:
        - {{ include "lightrail.jobContainer" (merge (dict "name" "wait") $role) | indent 10 | trim }}
          command: [python, -c]
          args:
            - |
              {{- .root.Files.Get "files/scripts/wait_for_shards.py" | trim | nindent 14 }}
            - {{ .root.Values.jobs.timeoutSeconds | quote }}
            {{- range include "lightrail.shardPods" .root | fromJsonArray }}
            - http://{{ . }}.{{ include "lightrail.fullname" $.root }}-shard.{{ $.root.Release.Namespace }}.svc:9464/readyz
            {{- end }}
          volumeMounts:
            - name: tmp
              mountPath: /tmp
      {{- end }}
      containers:
        - {{ include "lightrail.jobContainer" (merge (dict "name" .name) $role) | indent 10 | trim }}
          command: [sh, -c]
          args:
            - |
              {{- include "lightrail.adminShell" . | nindent 14 }}
              {{- .script | nindent 14 }}
          env:
            {{- include "lightrail.operatorEnv" .root | nindent 12 }}
            {{- with .root.Values.jobs.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          volumeMounts:
            {{- include "lightrail.operatorMounts" .root | nindent 12 }}
      volumes:
        {{- include "lightrail.operatorVolumes" .root | nindent 8 }}
{{- end -}}

{{/* Names of the pods of all shards, as JSON. */}}
{{- define "lightrail.shardPods" -}}
{{- $name := printf "%s-shard" (include "lightrail.fullname" .) -}}
{{- $members := int .Values.shards.members -}}
{{- $pods := list -}}
{{- range $shard := until (int .Values.shards.replicas) -}}
{{- if eq $members 1 -}}
{{- $pods = append $pods (printf "%s-%d" $name $shard) -}}
{{- else -}}
{{- range until $members }}{{ $pods = append $pods (printf "%s-%d-%d" $name $shard .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- toJson $pods -}}
{{- end -}}

{{/* What the cluster has of this release, as JSON: "alone", the number of shards without replicas, and "members",
by the number of each other shard. */}}
{{- define "lightrail.foundShards" -}}
{{- $name := printf "%s-shard" (include "lightrail.fullname" .) -}}
{{- $alone := 0 -}}
{{- $members := dict -}}
{{- range (lookup "apps/v1" "StatefulSet" .Release.Namespace "").items -}}
{{- if eq .metadata.name $name -}}
{{- $alone = int .spec.replicas -}}
{{- else if regexMatch (printf "^%s-[0-9]+$" $name) .metadata.name -}}
{{- $_ := set $members (trimPrefix (printf "%s-" $name) .metadata.name) (int .spec.replicas) -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "alone" $alone "members" $members) -}}
{{- end -}}

{{/* Numbers of the shards that this upgrade removes, as JSON; read from the cluster. */}}
{{- define "lightrail.leavingShards" -}}
{{- $found := include "lightrail.foundShards" . | fromJson -}}
{{- $first := int .Values.shards.replicas -}}
{{- $leaving := untilStep $first (int $found.alone) 1 -}}
{{- range $id, $_ := $found.members -}}
{{- if ge (int $id) $first }}{{ $leaving = append $leaving (int $id) }}{{ end -}}
{{- end -}}
{{- toJson $leaving -}}
{{- end -}}
