"""Linux machines over SSH: a Raspberry Pi, a server, a workstation, measured as devices of platform `linux`.

`address` reads `ssh://user@host:port`; `connection` is the transport over the system's OpenSSH client;
`target` says what such a machine can measure. Files are below `~/.cache/sme2` of the user there, unless
SME2_SSH_ROOT names another folder. All the rest is that of any remote device: `remote/`.
"""
