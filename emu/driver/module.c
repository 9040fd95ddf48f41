/* Modules: images of the emulated NVRTC, compiled for the CPU and loaded; functions and their
 * attributes. */
#include "driver.h"
#include "../nvrtc/build.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUmodule modules;

typedef struct {
	const char *base;
	char *lo, *hi;
} TextSpan;

static int
find_span(struct dl_phdr_info *info, size_t n, void *data)
{
	TextSpan *s = data;

	(void)n;
	if ((const char *)info->dlpi_addr != s->base)
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		char *lo = (char *)info->dlpi_addr + p->p_vaddr;
		if (p->p_type != PT_LOAD)
			continue;
		if (!s->lo || lo < s->lo)
			s->lo = lo;
		if (lo + p->p_memsz > s->hi)
			s->hi = lo + p->p_memsz;
	}
	return 1;
}

/* Returns whether hardware would accept the image. A binary needs the same major version and no
 * later minor one; an `a` variant needs exactly that version; Tegra architectures accept only their
 * own. PTX of the same or an earlier version is accepted. */
static bool
fits(const NvrtcSource *s)
{
	if (s->exact && s->arch != emu_arch)
		return false;
	if (s->ptx)
		return s->arch <= emu_arch;
	if (s->arch == 87 || emu_arch == 87 || s->arch == 110 || emu_arch == 110)
		return s->arch == emu_arch;
	return s->arch / 10 == emu_arch / 10 && s->arch <= emu_arch;
}

static CUresult
load(CUmodule *out, const void *image)
{
	NvrtcSource s;
	Built object;
	char *log;

	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	if (image_read(image, &s)) {
		emu_note("module: the image was not made by the emulator, or is damaged");
		return CUDA_ERROR_INVALID_IMAGE;
	}
	if (!fits(&s)) {
		emu_note("module '%s' is for sm_%d%s, the device is sm_%d", s.name, s.arch,
		         s.exact ? "a" : "", emu_arch);
		image_close(&s);
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	bool built = build_object(&s, emu_check, &object, &log);
	char *source = strdup(s.source);
	image_close(&s);
	if (!built) {
		emu_note("module: %s", log);
		build_release(&object);
		free(log);
		free(source);
		return CUDA_ERROR_INVALID_IMAGE;
	}
	free(log);
	static bool warned;
	if (object.unkept.code != LLMC_OK)
		build_warn_once(&warned, object.unkept.text, "objects are not cached");
	void *so = dlopen(strbuf_str(&object.entry.path), RTLD_NOW | RTLD_LOCAL);
	build_release(&object);
	if (!so) {
		emu_note("module: %s", dlerror());
		free(source);
		return CUDA_ERROR_INVALID_IMAGE;
	}
	/* If the same image is loaded twice, the object's globals are shared. llmc's kernels have
	 * no globals. */
	for (CUmodule m = modules; m; m = m->next)
		if (m->so == so) {
			m->refs++;
			free(source);
			*out = m;
			return CUDA_SUCCESS;
		}
	CUmodule m = emu_alloc(sizeof *m);
	m->so = so;
	m->source = source;
	m->refs = 1;
	struct link_map *map;
	if (!dlinfo(so, RTLD_DI_LINKMAP, &map)) {
		TextSpan span = { (const char *)map->l_addr, NULL, NULL };
		dl_iterate_phdr(find_span, &span);
		if (span.lo)
			m->data = region_adopt(R_MODULE, span.lo, (size_t)(span.hi - span.lo));
	}
	m->next = modules;
	modules = m;
	*out = m;
	return CUDA_SUCCESS;
}

API(cuModuleLoadData, (CUmodule * out, const void *image))
{
	ENTER(cuModuleLoadData, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	return load(out, image);
}

API(cuModuleLoadDataEx,
    (CUmodule * out, const void *image, unsigned n, int *options, void **values))
{
	ENTER(cuModuleLoadDataEx, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	(void)n, (void)options, (void)values;
	return load(out, image);
}

static bool
module_known(CUmodule m)
{
	for (CUmodule x = modules; x; x = x->next)
		if (x == m)
			return true;
	return false;
}

static void
module_free(CUmodule m)
{
	for (int i = 0; i < m->n_fn; i++) {
		free(m->fn[i]->obj);
		free(m->fn[i]->name);
		free(m->fn[i]);
	}
	free(m->fn);
	free(m->source);
	if (m->data)
		region_drop(m->data);
	for (; m->refs; m->refs--)
		dlclose(m->so);
	free(m);
}

static bool
kernel_uses(const EmuOp *op, const void *m)
{
	return op->kind == OP_KERNEL && op->fn->mod == m;
}

API(cuModuleUnload, (CUmodule m))
{
	ENTER(cuModuleUnload, NEEDS_CONTEXT | UNSAFE_IN_CAPTURE);
	if (!module_known(m))
		return CUDA_ERROR_INVALID_HANDLE;
	const EmuOp *op = m->refs > 1 ? NULL : timeline_uses(kernel_uses, m);
	if (op) {
		emu_note("cuModuleUnload: the host has not waited for kernel '%s' of this module",
		         op->name);
		emu_error = CUDA_ERROR_LAUNCH_FAILED;
	}
	timeline_run_device();
	timeline_known_all(emu_device());
	if (m->refs > 1) {
		m->refs--;
		dlclose(m->so);
		return driver_sticky();
	}
	for (CUmodule *x = &modules; *x; x = &(*x)->next)
		if (*x == m) {
			*x = m->next;
			break;
		}
	module_free(m);
	return driver_sticky();
}

int
module_release_all(void)
{
	int n = 0;

	for (; modules; n++) {
		CUmodule m = modules;
		modules = m->next;
		module_free(m);
	}
	return n;
}

bool
module_has_function(const Func *f)
{
	for (CUmodule m = modules; m; m = m->next)
		for (int i = 0; i < m->n_fn; i++)
			if (m->fn[i] == f)
				return true;
	return false;
}

static void *
symbol(CUmodule m, const char *prefix, const char *name)
{
	char *s = emu_format("%s%s", prefix, name);
	void *p = dlsym(m->so, s);

	free(s);
	return p;
}

API(cuModuleGetFunction, (CUfunction * out, CUmodule m, const char *name))
{
	ENTER(cuModuleGetFunction, NEEDS_CONTEXT);
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module_known(m))
		return CUDA_ERROR_INVALID_HANDLE;
	for (int i = 0; i < m->n_fn; i++)
		if (!strcmp(m->fn[i]->name, name)) {
			*out = (CUfunction)(void *)m->fn[i];
			return CUDA_SUCCESS;
		}
	/* Without extern "C" a device compiler would mangle the name too. */
	void **invoke = symbol(m, "emu_invoke_", name);
	if (!invoke || !symbol(m, "", name))
		return CUDA_ERROR_NOT_FOUND;
	Func *f = emu_alloc(sizeof *f);
	const uint32_t *param = symbol(m, "emu_param_", name);
	const int *bounds = symbol(m, "emu_bounds_", name);
	f->name = strdup(name);
	f->mod = m;
	f->source = m->source;
	f->layouts = dlsym(m->so, "_binary_layouts_start");
	f->layouts_end = dlsym(m->so, "_binary_layouts_end");
	memcpy(&f->invoke, invoke, sizeof f->invoke);
	f->n_param = (int)param[0];
	f->param_size = param + 1;
	f->max_threads = bounds[0] > 0 && bounds[0] < 1024 ? bounds[0] : 1024;
	m->fn = realloc(m->fn, sizeof *m->fn * (size_t)(m->n_fn + 1));
	m->fn[m->n_fn++] = f;
	*out = (CUfunction)(void *)f;
	return CUDA_SUCCESS;
}

API(cuModuleGetGlobal_v2, (CUdeviceptr * p, size_t *n, CUmodule m, const char *name))
{
	ENTER(cuModuleGetGlobal_v2, NEEDS_CONTEXT);
	if (!module_known(m))
		return CUDA_ERROR_INVALID_HANDLE;
	void *s = dlsym(m->so, name);
	if (!s)
		return CUDA_ERROR_NOT_FOUND;
	Dl_info info;
	ElfW(Sym) *sym = NULL;
	if (n)
		*n = dladdr1(s, &info, (void **)&sym, RTLD_DL_SYMENT) && sym ? sym->st_size : 0;
	if (p)
		*p = (uintptr_t)s;
	return CUDA_SUCCESS;
}

/* ---- attributes and occupancy ---- */

API(cuFuncGetAttribute, (int *v, int attribute, CUfunction fn))
{
	ENTER(cuFuncGetAttribute, NEEDS_CONTEXT);
	Func *f = (Func *)(void *)fn;
	if (!v)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module_has_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*v = f->max_threads;
		break;
	case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
		*v = (int)f->static_bytes;
		break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*v = 64;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*v = emu_arch;
		break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*v = f->max_dyn ? f->max_dyn : 49152;
		break;
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		*v = f->nonportable;
		break;
	default:
		*v = 0;
	}
	return CUDA_SUCCESS;
}

API(cuFuncSetAttribute, (CUfunction fn, int attribute, int v))
{
	ENTER(cuFuncSetAttribute, NEEDS_CONTEXT);
	Func *f = (Func *)(void *)fn;
	if (!module_has_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		if (v < 0 || v + (int)f->static_bytes > device_shared_optin())
			return CUDA_ERROR_INVALID_VALUE;
		f->max_dyn = v;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		f->nonportable = v;
		return CUDA_SUCCESS;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		if (v < -1 || v > 100)
			return CUDA_ERROR_INVALID_VALUE;
		f->carveout = v;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult
occupancy(int *n, CUfunction fn, int threads, size_t dyn)
{
	Func *f = (Func *)(void *)fn;

	if (!n || threads <= 0 || threads > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	if (!module_has_function(f))
		return CUDA_ERROR_INVALID_HANDLE;
	*n = threads > f->max_threads || dyn > (size_t)(f->max_dyn ? f->max_dyn : 49152)
	         ? 0
	         : func_residency(f, threads, (uint32_t)dyn);
	return CUDA_SUCCESS;
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *n, CUfunction fn, int threads, size_t dyn))
{
	ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessor, NEEDS_CONTEXT);
	return occupancy(n, fn, threads, dyn);
}

API(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
    (int *n, CUfunction fn, int threads, size_t dyn, unsigned flags))
{
	ENTER(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, NEEDS_CONTEXT);
	(void)flags;
	return occupancy(n, fn, threads, dyn);
}
