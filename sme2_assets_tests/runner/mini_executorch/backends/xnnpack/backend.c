void xnn_init_configs(void);

__attribute__((constructor)) static void register_backend(void) {
  xnn_init_configs();
}
