"""The number format in kernels' names, on names from published traces and issues."""

from __future__ import annotations

import pytest

from latfix.profilers.gpu.kernel_number_formats import (
    is_device_kernel,
    is_matrix_kernel,
    matrix_formats,
    number_format,
)

_GEMV = (
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, {0}, {0}, {0}, float, false, true, true,"
    " false, 7, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<{0} const>,"
    " cublasGemvTensorStridedBatched<{0} const>, cublasGemvTensorStridedBatched<{0}>, float> >(cublasGemvParamsEx<"
    "int, cublasGemvTensorStridedBatched<{0} const>, cublasGemvTensorStridedBatched<{0} const>,"
    " cublasGemvTensorStridedBatched<{0}>, float>)"
)
_FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, {0},"
    " Flash_kernel_traits<64, 128, 128, 4, {0}> >, false, false, false, false, false, true, false,"
    " false>(pytorch_flash::Flash_fwd_params)"
)
_CUTLASS3 = (
    "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<"
    "cute::tuple<int, int, int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::"
    "MainloopSm90TmaGmmaWarpSpecialized<4>, cute::tuple<cute::C<64>, cute::C<128>, cute::C<128>>, {0},"
    " cute::tuple<long, cute::C<1>, long>, {0}, cute::tuple<long, cute::C<1>, long>, cute::TiledMMA<cute::MMA_Atom<"
    "cute::{1}<1, 1>>>>, cutlass::bfloat16_t>>>"
)

MATRIX = [
    # cuBLAS, Ampere and before
    ("ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", "bf16"),
    ("ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nn", "bf16"),
    ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f2f_stages_32x5_tn", "fp16"),
    ("ampere_h16816gemm_128x128_ldg8_stages_32x5_tn", "fp16"),
    ("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_mods_nt", "fp16"),
    ("ampere_sgemm_128x64_tn", "fp32"),
    ("volta_int32_i8816gemm_int8_256x128_ldg16_mods_nt", "int8"),
    # cuBLASLt: type of the operands in memory, then of the product
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize256x64x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4", "fp32"),
    ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64_stage3_warpsize2x1x2_tensor16x8x8", "tf32"),
    (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel"
        "__5x_cublas",
        "bf16",
    ),
    ("sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x128x64_warpgroupsize1x1x1_execute", "fp16"),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_cgasize1x2x1_stage4", "fp8"),
    ("sm90_xmma_gemm_i8i32_i8i32_i32_tn_n_tilesize256x128x128_warpgroupsize2x1x1_execute", "int8"),
    # cuBLASLt's newer kernels
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN", "fp16"),
    ("nvjet_sm90_hss_64x8_64x16_1x1_h_bz_splitK_NNT", "fp16"),
    ("nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT", "bf16"),
    ("nvjet_sm120_tst_mma_64x64x128_3_32x32x128_tmaAB_alignCD4_bz_TNNN", "bf16"),
    ("nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT", "fp8"),
    ("nvjet_sss_tf32_128x256_TNT", "tf32"),
    # torch's own products with integer weights, as seen with torch 2.11
    (
        "at::native::weight_int8pack_mm_kernel(float const*, signed char const*, float const*, float*, int)",
        "fp32",
    ),
    (
        "at::native::weight_int8pack_mm_kernel(c10::BFloat16 const*, signed char const*, c10::BFloat16 const*, int)",
        "bf16",
    ),
    # CUTLASS inside cuBLAS
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_nn_align8>"
        "(cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_32x6_nn_align8::Params)",
        "bf16",
    ),
    ("void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(…::Params)", "bf16"),
    ("cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x4_tn_align8", "fp16"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_h16816gemm_256x128_32x3_nn_align8>(…::Params)", "fp16"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4>(…::Params)", "tf32"),
    ("cutlass_tensorop_s1688tf32gemm_256x128_16x3_nn_align4", "tf32"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(…::Params)", "fp32"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_128x64_128x3_tn_align16>(…::Params)", "int8"),
    ("cutlass3x_sm100_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_64x128x64_1x1x1_0_nnn_align8_1sm", "fp16"),
    ("cutlass3x_sm90_tensorop_s64x128x32gemm_e4m3_e4m3_f32_bf16_bf16_64x128x128_2x1x1_0_tnt_align16", "fp8"),
    ("cutlass3x_sm100_tensorop_s128x128x8tf32gemm_f32_f32_f32_f32_f32_128x128x32_0_tnn_align4_2sm_epi_tma", "tf32"),
    # templates
    (_CUTLASS3.format("cutlass::float_e4m3_t", "SM90_64x128x32_F32E4M3E4M3_SS_TN"), "fp8"),
    (_CUTLASS3.format("cutlass::bfloat16_t", "SM90_64x128x16_F32BF16BF16_SS"), "bf16"),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, 1024u>(unsigned int)", "fp8"),
    ("bmm_e4m3_e4m3e4m3_fp32_t128x64x128u2_s6_et64x64", "fp8"),
    (_GEMV.format("__nv_bfloat16"), "bf16"),
    (_GEMV.format("float"), "fp32"),
    ("void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 2, 4, false, false>(…)", "fp16"),
    (
        "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false, cublasGemvTensorStridedBatched<float const> >",
        "fp32",
    ),
    # their first type is that of the sums
    (
        "void gemmSN_NN_kernel<float, 128, 2, 4, 8, 3, 4, false, cublasGemvTensorStridedBatched<__nv_bfloat16 const>,"
        " cublasGemvTensorStridedBatched<__nv_bfloat16 const>, cublasGemvTensorStridedBatched<__nv_bfloat16> >(…)",
        "bf16",
    ),
    (
        "void gemmk1_kernel<int, float, 256, 5, false, false, false, false,"
        " cublasGemvTensorStridedBatched<__nv_bfloat16 const>, cublasGemvTensorStridedBatched<__nv_bfloat16 const>,"
        " cublasGemvTensorStridedBatched<__nv_bfloat16>,"
        " float, 0>(…)",
        "bf16",
    ),
    (
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensorStridedBatched<__half const>,"
        " cublasGemvTensorStridedBatched<__half> > >(…)",
        "fp16",
    ),
    # a wrapper around a named kernel, and an unnamed kernel
    (
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_optimized_f16_128x128_32x5_nhwc_align8>(…)",
        "fp16",
    ),
    (
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
        "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>>, cutlass::bfloat16_t, float,"
        " cutlass::arch::Sm90> > > >(…)",
        "bf16",
    ),
    # convolutions
    ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x32x32_stage4", "fp16"),
    ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x32x64", "tf32"),
    ("sm86_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64", "bf16"),
    ("_5x_cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "fp32"),
    # attention
    (_FLASH.format("cutlass::bfloat16_t"), "bf16"),
    (
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)",
        "bf16",
    ),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "fp16"),
    # cuDNN also writes f16 for bfloat16
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0", ""),
    # compiled: templates of operators with a fixed format
    ("triton_tem_fused__int_mm__to_copy_add_clamp_mul_round_3", "int8"),
    ("triton_tem_fused__scaled_mm_0", "fp8"),
    ("triton_tem_fused_addmm_relu_1", ""),
    # other formats
    ("bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_bC16_t128", ""),
    ("nvjet_sss_128x256_64x4_2x1_v_bz_TNN", ""),
    ("cutlass_80_tensorop_d884gemm_64x64_16x4_nn_align1", ""),
]


@pytest.mark.parametrize(("name", "result"), MATRIX)
def test_the_format_of_a_matrix_kernel_is_known(name: str, result: str) -> None:
    assert (is_matrix_kernel(name), number_format(name)) == (True, result)


_ELEMENT = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{0}>, std::array<char*, 3ul>"
    " >(int, at::native::CUDAFunctor_add<{0}>, std::array<char*, 3ul>)"
)


@pytest.mark.parametrize(
    ("name", "result"),
    [
        (_ELEMENT.format("c10::BFloat16"), "bf16"),
        (_ELEMENT.format("float"), "fp32"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int)",
            "bf16",
        ),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int)", "fp32"),
        (_ELEMENT.format("long"), ""),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase"
            "&)::{lambda()#3}::operator()() const::{lambda(c10::BFloat16)#1}>",
            "",
        ),
        ("triton_poi_fused_add_gelu_0", ""),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false>(…)", ""),
        ("void per_token_group_quant_8bit_kernel<c10::BFloat16, __nv_fp8_e4m3, false, false, float>(…)", ""),
        ("void flash::flash_fwd_splitkv_combine_kernel<traits>(params)", ""),
        (
            "void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4, false,"
            " false, cutlass::bfloat16_t, Flash_kernel_traits<64, 64, 256, 4, cutlass::bfloat16_t> >, 8, 1, true>(…)",
            "bf16",
        ),
        (
            "void reduce_1Block_kernel<float, 128, 7, cublasGemvTensorStridedBatched<__half>,"
            " cublasGemvTensorStridedBatched<__half>, cublasGemvTensorStridedBatched<__half> >(float const*, …)",
            "fp16",
        ),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ""),
        ("Memcpy HtoD (Pageable -> Device)", ""),
        ("Memset (Device)", ""),
        ("aten::mm", ""),
        ("aten::_scaled_mm", ""),
    ],
)
def test_other_kernels_are_not_matrix_kernels(name: str, result: str) -> None:
    assert (is_matrix_kernel(name), number_format(name)) == (False, result)


def test_operators_and_copies_are_not_kernels() -> None:
    assert not any(map(is_device_kernel, ("aten::mm", "quantized::linear_dynamic", "Memcpy DtoD", "aten::mm.out")))
    assert all(map(is_device_kernel, ("nvjet_tst_1", "void cutlass::Kernel2<a>(a::Params)", _ELEMENT)))


def test_launches_are_counted_by_format() -> None:
    counted = matrix_formats(
        {
            "aten::mm": 9,
            "nvjet_tst_128x24_64x11_2x1_v_bz_TNT": 4,
            "ampere_bf16_s16816gemm_bf16_64x64_tn": 1,
            "ampere_sgemm_128x64_tn": 2,
            "triton_tem_fused_mm_1": 3,
            _ELEMENT.format("c10::BFloat16"): 70,
        }
    )
    assert counted == {"bf16": 5, "fp32": 2, "": 3}
