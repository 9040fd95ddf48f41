/* Operations of a warp that go through emu_warp, for the engine and the device header */
#ifndef EMU_DEVICE_WARP_OPS_H
#define EMU_DEVICE_WARP_OPS_H

enum {
	EMU_W_SYNC,
	EMU_W_SHFL,
	EMU_W_SHFL_XOR,
	EMU_W_SHFL_UP,
	EMU_W_SHFL_DOWN,
	EMU_W_BALLOT,
	EMU_W_MATCH_ANY,
	EMU_W_MATCH_ALL,
	EMU_W_RED_ADD,
	EMU_W_RED_MIN,
	EMU_W_RED_MAX,
	EMU_W_RED_MIN_S,
	EMU_W_RED_MAX_S,
	EMU_W_RED_AND,
	EMU_W_RED_OR,
	EMU_W_RED_XOR,
	EMU_W_SUM_F32,
	EMU_W_MAX_F32,
	EMU_W_MIN_F32,
	EMU_W_LDMATRIX,
	EMU_W_LDMATRIX_T,
	EMU_W_STMATRIX,
	EMU_W_MMA_BF16_16816,
	EMU_W_MMA_F16_16816,
	EMU_W_MMA_BF16_1688,
	EMU_W_MMA_F16_1688,
	EMU_W_MMA_TF32_1688,
	EMU_W_MMA_E4M3_16832,
	EMU_W_MMA_S8_16832,
	EMU_W_MMA_S8_16816,
	EMU_W_MMA_S8_8816
};

/* wgmma flags: the element type (without F16 and E4M3: bf16), and operands in which M or N is
 * contiguous instead of K */
enum { EMU_WG_F16 = 1, EMU_WG_TA = 2, EMU_WG_TB = 4, EMU_WG_E4M3 = 8 };

#endif
