{{- define "ariane.name" -}}{{ .Release.Name }}{{- end }}

{{- define "ariane.labels" -}}
app.kubernetes.io/name: ariane
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "ariane.selector" -}}
app.kubernetes.io/name: ariane
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "ariane.image" -}}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}

{{- define "ariane.namesrvAddr" -}}
{{- $addresses := list -}}
{{- range $number := until (int .Values.namesrv.replicas) -}}
{{- $addresses = append $addresses (printf "%s-namesrv-%d.%s-namesrv:9876" $.Release.Name $number $.Release.Name) -}}
{{- end -}}
{{- join ";" $addresses -}}
{{- end }}

{{- define "ariane.failoverMembers" -}}
{{- $members := list -}}
{{- range $number := until (int .Values.broker.replicas) -}}
{{- $name := printf "%s-broker-%d" $.Release.Name $number -}}
{{- $members = append $members (printf "%s=%s.%s-broker:10911" $name $name $.Release.Name) -}}
{{- end -}}
{{- join ";" $members -}}
{{- end }}

{{- define "ariane.security" -}}
{{- if .Values.insecure }}
insecure=true
{{- else }}
{{- if or (not .Values.tls.secretName) (not .Values.acl.secretName) }}
{{- fail "set tls.secretName and acl.secretName, or insecure=true in a network that you trust" }}
{{- end }}
aclEnable=true
rocketmqHome=/etc/ariane/acl
tls.server.mode=enforcing
tls.server.certPath=/etc/ariane/tls/tls.crt
tls.server.keyPath=/etc/ariane/tls/tls.key
{{- end }}
{{- end }}

{{- define "ariane.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ariane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "ariane.mounts" -}}
- {name: data, mountPath: /var/lib/ariane}
- {name: config, mountPath: /etc/ariane/conf, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if not .Values.insecure }}
- {name: tls, mountPath: /etc/ariane/tls, readOnly: true}
- {name: acl, mountPath: /etc/ariane/acl/conf, readOnly: true}
{{- end }}
{{- end }}

{{- define "ariane.volumes" -}}
- name: config
  configMap: {name: {{ include "ariane.name" . }}-config}
- name: tmp
  emptyDir: {}
{{- if not .Values.insecure }}
- name: tls
  secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440}
- name: acl
  secret: {secretName: {{ .Values.acl.secretName }}, defaultMode: 0440}
{{- end }}
{{- end }}
