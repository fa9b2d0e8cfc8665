void kai_run_rhs_pack_nxk_f32p8vlx1biasf32_f32_f32_sme(void) {}
