/* Launches. The checks that CUDA makes are made here, before an operation is queued. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static size_t
up(size_t n, size_t align)
{
	return (n + align - 1) / align * align;
}

CUresult
launch_make(Func *f, Dim grid, Dim block, Dim cluster, uint32_t dyn, bool cooperative,
            void **params, void **extra, EmuOp **out)
{
	uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z,
	         threads = (uint64_t)block.x * block.y * block.z;
	unsigned per = cluster.x * cluster.y * cluster.z;
	int sms = (int)emu_env("LLMC_EMU_SMS", 4);

	if (!module_has_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	if (!blocks || !threads || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535 ||
	    block.x > 1024 || block.y > 1024 || block.z > 64 || threads > 1024 || blocks > 1u << 24)
		return CUDA_ERROR_INVALID_VALUE;
	if (threads > (uint64_t)f->max_threads) {
		emu_note("kernel '%s': %llu threads per block, its launch bounds allow %d", f->name,
		         (unsigned long long)threads, f->max_threads);
		return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
	}
	if (dyn > (uint32_t)(f->max_dyn ? f->max_dyn : 49152 - (int)f->static_bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (per > 1) {
		if (emu_arch < 90 || per > 16 || (per > 8 && !f->nonportable) ||
		    grid.x % cluster.x || grid.y % cluster.y || grid.z % cluster.z)
			return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	}
	if (cooperative &&
	    blocks > (uint64_t)func_residency(f, (int)threads, dyn) * (uint64_t)sms) {
		emu_note(
		    "kernel '%s': cooperative launch of %llu blocks, %d fit the device at once",
		    f->name, (unsigned long long)blocks,
		    func_residency(f, (int)threads, dyn) * sms);
		return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
	}
	size_t bytes = 0;
	for (int i = 0; i < f->n_param; i++)
		bytes = up(bytes, 64) + f->param_size[2 * i];
	if (f->n_param && !params && !extra)
		return CUDA_ERROR_INVALID_VALUE;
	EmuOp *op = op_new(OP_KERNEL, f->name);
	op->fn = f;
	op->grid = grid;
	op->block = block;
	op->cluster = cluster;
	op->dyn = dyn;
	op->cooperative = cooperative;
	op->n_block = (uint32_t)blocks;
	op->param = emu_alloc(sizeof *op->param * (size_t)(f->n_param + 1));
	op->param_mem =
	    aligned_alloc(128, up(bytes + 128, 128)); /* parameters may be tensor maps */
	op->bytes = up(bytes + 128, 128);
	const char *from = NULL;
	size_t given = 0;
	for (void **e = extra; e && *e; e += 2) {
		if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER)
			from = e[1];
		else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE)
			given = *(size_t *)e[1];
	}
	size_t at = 0, to = 0;
	for (int i = 0; i < f->n_param; i++) {
		size_t n = f->param_size[2 * i], align = f->param_size[2 * i + 1];
		to = up(to, 64);
		op->param[i] = op->param_mem + to;
		at = up(at, align);
		if (!params && (!from || at + n > given)) {
			op_template_free(op);
			return CUDA_ERROR_INVALID_VALUE;
		}
		if (params && !emu_host_read(op->param[i], params[i], n)) {
			emu_note("kernel '%s': parameter %d of %d (%zu bytes) cannot be read at %p",
			         f->name, i + 1, f->n_param, n, params[i]);
			op_template_free(op);
			return CUDA_ERROR_INVALID_VALUE;
		}
		if (!params)
			memcpy(op->param[i], from + at, n);
		at += n;
		to += n;
	}
	*out = op;
	return CUDA_SUCCESS;
}

static CUresult
launch(CUfunction fn, Dim grid, Dim block, Dim cluster, uint32_t dyn, bool cooperative,
       bool programmatic, CUstream handle, void **params, void **extra)
{
	CUstream s;
	EmuOp *op;
	CUresult r = stream_get(handle, &s);

	if (!r)
		r = launch_make((Func *)(void *)fn, grid, block, cluster, dyn, cooperative, params,
		                extra, &op);
	if (r)
		return r;
	op->requested = programmatic;
	return stream_add(s, op, programmatic && emu_arch >= 90);
}

API(cuLaunchKernel, (CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                     unsigned bz, unsigned dyn, CUstream s, void **params, void **extra))
{
	ENTER(cuLaunchKernel, NEEDS_CONTEXT);
	return launch(fn, (Dim){ gx, gy, gz }, (Dim){ bx, by, bz }, (Dim){ 1, 1, 1 }, dyn, false,
	              false, s, params, extra);
}

API(cuLaunchCooperativeKernel, (CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                unsigned by, unsigned bz, unsigned dyn, CUstream s, void **params))
{
	ENTER(cuLaunchCooperativeKernel, NEEDS_CONTEXT);
	return launch(fn, (Dim){ gx, gy, gz }, (Dim){ bx, by, bz }, (Dim){ 1, 1, 1 }, dyn, true,
	              false, s, params, NULL);
}

API(cuLaunchKernelEx, (const CUlaunchConfig *c, CUfunction fn, void **params, void **extra))
{
	ENTER(cuLaunchKernelEx, NEEDS_CONTEXT);
	Dim cluster = { 1, 1, 1 };
	bool cooperative = false, programmatic = false;
	if (!c || (c->numAttrs && !c->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < c->numAttrs; i++) {
		const CUlaunchAttributeValue *v = &c->attrs[i].value;
		switch (c->attrs[i].id) {
		case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
			cooperative = v->cooperative;
			break;
		case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
			cluster = (Dim){ v->clusterDim.x, v->clusterDim.y, v->clusterDim.z };
			break;
		case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
			programmatic = v->programmaticStreamSerializationAllowed;
			break;
		case CU_LAUNCH_ATTRIBUTE_IGNORE:
		case CU_LAUNCH_ATTRIBUTE_PRIORITY:
		case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
		case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
			break;
		default:
			return CUDA_ERROR_NOT_SUPPORTED;
		}
	}
	if (!cluster.x || !cluster.y || !cluster.z)
		return CUDA_ERROR_INVALID_CLUSTER_SIZE;
	return launch(fn, (Dim){ c->gridDimX, c->gridDimY, c->gridDimZ },
	              (Dim){ c->blockDimX, c->blockDimY, c->blockDimZ }, cluster, c->sharedMemBytes,
	              cooperative, programmatic, c->hStream, params, extra);
}

API(cuLaunchHostFunc, (CUstream handle, CUhostFn fn, void *user))
{
	ENTER(cuLaunchHostFunc, NEEDS_CONTEXT);
	CUstream s;
	CUresult r = stream_get(handle, &s);
	if (r)
		return r;
	EmuOp *op = op_new(OP_HOST, "cuLaunchHostFunc");
	op->host_fn = fn;
	op->host_arg = user;
	return stream_add(s, op, false);
}
