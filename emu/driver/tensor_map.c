/* cuTensorMapEncodeTiled with the rules of the hardware */
#include "driver.h"
#include "../core/tensor_map.h"

#include <string.h>

enum { TYPES = 13 };

API(cuTensorMapEncodeTiled, (void *map, int type, unsigned rank, void *address, const uint64_t *dim,
                             const uint64_t *stride, const unsigned *box, const unsigned *step,
                             int interleave, int swizzle, int promotion, int fill))
{
	static const uint8_t bytes[TYPES] = { 1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4 };
	ENTER(cuTensorMapEncodeTiled, ANYTIME);
	struct TensorMap m = { .magic = TENSOR_MAGIC };
	if (emu_arch < 90)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!map || (uintptr_t)map & 127 || type < 0 || type >= TYPES || rank < 1 || rank > 5 ||
	    !address || (uintptr_t)address & 15 || !dim || !box || !step || (rank > 1 && !stride) ||
	    interleave || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3 ||
	    fill < 0 || fill > 1)
		return CUDA_ERROR_INVALID_VALUE;
	if (fill && (type < 6 || type > 9))
		return CUDA_ERROR_INVALID_VALUE;
	m.rank = (uint8_t)rank;
	m.elem = bytes[type];
	m.swizzle = (uint8_t)(swizzle ? 16 << swizzle : 0);
	m.nan_fill = (uint8_t)fill;
	m.addr = (uintptr_t)address;
	for (unsigned i = 0; i < rank; i++) {
		if (!dim[i] || dim[i] > 1ull << 32 || !box[i] || box[i] > 256 || !step[i] ||
		    step[i] > 8)
			return CUDA_ERROR_INVALID_VALUE;
		if (i && (stride[i - 1] % 16 || stride[i - 1] >= 1ull << 40))
			return CUDA_ERROR_INVALID_VALUE;
		m.dim[i] = dim[i];
		m.box[i] = (uint16_t)box[i];
		m.step[i] = (uint8_t)step[i];
		if (i)
			m.stride[i - 1] = stride[i - 1];
	}
	if (box[0] * m.elem % 16 || (m.swizzle && box[0] * m.elem > m.swizzle))
		return CUDA_ERROR_INVALID_VALUE;
	memset(map, 0, 128);
	memcpy(map, &m, sizeof m);
	return CUDA_SUCCESS;
}

API(cuTensorMapReplaceAddress, (void *map, void *address))
{
	ENTER(cuTensorMapReplaceAddress, ANYTIME);
	struct TensorMap m;
	if (!map || (uintptr_t)address & 15 || !address)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&m, map, sizeof m);
	if (m.magic != TENSOR_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	m.addr = (uintptr_t)address;
	memcpy(map, &m, sizeof m);
	return CUDA_SUCCESS;
}
