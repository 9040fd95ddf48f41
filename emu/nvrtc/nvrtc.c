/* Emulated NVRTC with the same calls, options and kinds of results. It compiles to an image that
 * only the emulator's driver loads. Compile errors are in the log, with the program's name and
 * line. */
#include "build.h"
#include "../cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define API(ret, name, args)                                                                       \
	EXPORT ret name args;                                                                      \
	EXPORT ret name args

struct nvrtc_program {
	char *name, *source, **header_name, **header;
	int n_header;
	char *log, *image, *ptx;
	size_t image_bytes, ptx_bytes;
	bool compiled;
};

enum { N_ARCH = 11 };
static const int archs[N_ARCH] = {
	75, 80, 86, 87, 89, 90, 100, 120, 103, 121, 110
}; /* 103 and 121 exist since version 12.9, 110 since 13.0 */

/* Returns the version number as the driver encodes it: 13000 for 13.0. */
static int
version(void)
{
	const char *v = getenv("LLMC_EMU_NVRTC");

	return v && *v ? atoi(v) : 13000;
}

static int
n_archs(void)
{
	return version() < 12090 ? N_ARCH - 3 : version() < 13000 ? N_ARCH - 1 : N_ARCH;
}

API(const char *, nvrtcGetErrorString, (nvrtcResult r))
{
	static const char *const text[] = { "NVRTC_SUCCESS",
		                            "NVRTC_ERROR_OUT_OF_MEMORY",
		                            "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
		                            "NVRTC_ERROR_INVALID_INPUT",
		                            "NVRTC_ERROR_INVALID_PROGRAM",
		                            "NVRTC_ERROR_INVALID_OPTION",
		                            "NVRTC_ERROR_COMPILATION",
		                            "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE" };
	return r >= 0 && r <= 7 ? text[r]
	       : r == 11        ? "NVRTC_ERROR_INTERNAL_ERROR"
	                        : "NVRTC_ERROR unknown";
}

API(nvrtcResult, nvrtcVersion, (int *major, int *minor))
{
	if (!major || !minor)
		return NVRTC_ERROR_INVALID_INPUT;
	*major = version() / 1000;
	*minor = version() % 1000 / 10;
	return NVRTC_SUCCESS;
}

API(nvrtcResult, nvrtcGetNumSupportedArchs, (int *n))
{
	if (!n)
		return NVRTC_ERROR_INVALID_INPUT;
	*n = n_archs();
	return NVRTC_SUCCESS;
}

API(nvrtcResult, nvrtcGetSupportedArchs, (int *list))
{
	if (!list)
		return NVRTC_ERROR_INVALID_INPUT;
	memcpy(list, archs, (size_t)n_archs() * sizeof *archs);
	return NVRTC_SUCCESS;
}

API(nvrtcResult, nvrtcCreateProgram,
    (nvrtcProgram * out, const char *src, const char *name, int n, const char *const *headers,
     const char *const *names))
{
	if (!out || !src || n < 0 || (n && (!headers || !names)))
		return NVRTC_ERROR_INVALID_INPUT;
	struct nvrtc_program *p = calloc(1, sizeof *p);
	if (!p)
		return NVRTC_ERROR_OUT_OF_MEMORY;
	p->source = strdup(src);
	p->name = strdup(name && *name ? name : "default_program");
	p->header_name = calloc((size_t)n + 1, sizeof *p->header_name);
	p->header = calloc((size_t)n + 1, sizeof *p->header);
	p->n_header = n;
	for (int i = 0; i < n; i++) {
		p->header_name[i] = strdup(names[i]);
		p->header[i] = strdup(headers[i]);
	}
	p->log = strdup("");
	*out = p;
	return NVRTC_SUCCESS;
}

API(nvrtcResult, nvrtcDestroyProgram, (nvrtcProgram * prog))
{
	if (!prog || !*prog)
		return NVRTC_ERROR_INVALID_PROGRAM;
	struct nvrtc_program *p = *prog;
	for (int i = 0; i < p->n_header; i++) {
		free(p->header_name[i]);
		free(p->header[i]);
	}
	free(p->header_name);
	free(p->header);
	free(p->name);
	free(p->source);
	free(p->log);
	free(p->image);
	free(p->ptx);
	free(p);
	*prog = NULL;
	return NVRTC_SUCCESS;
}

static bool
starts(const char *s, const char *with, const char **rest)
{
	size_t n = strlen(with);

	if (strncmp(s, with, n))
		return false;
	*rest = s + n;
	return true;
}

static nvrtcResult
refuse(struct nvrtc_program *p, const char *what, const char *opt)
{
	char text[512];

	snprintf(text, sizeof text, "nvrtc: error: %s: %s\n", what, opt);
	free(p->log);
	p->log = strdup(text);
	return NVRTC_ERROR_INVALID_OPTION;
}

/* Options without effect here; a trailing = accepts any value */
static const char *const ignored[] = { "--use_fast_math",
	                               "-use_fast_math",
	                               "--fmad=",
	                               "-fmad=",
	                               "--ftz=",
	                               "-ftz=",
	                               "--prec-div=",
	                               "-prec-div=",
	                               "--prec-sqrt=",
	                               "-prec-sqrt=",
	                               "-lineinfo",
	                               "--generate-line-info",
	                               "-G",
	                               "--device-debug",
	                               "-default-device",
	                               "--device-as-default-execution-space",
	                               "--maxrregcount=",
	                               "-maxrregcount=",
	                               "--ptxas-options=",
	                               "-Xptxas=",
	                               "-dopt",
	                               "--dopt=",
	                               "-dlto",
	                               "--extra-device-vectorization",
	                               "-w",
	                               "--disable-warnings",
	                               "--restrict",
	                               "--extensible-whole-program",
	                               "--diag-suppress=",
	                               "-diag-suppress=",
	                               "-diag-error=",
	                               "--no-source-include",
	                               "-no-cache",
	                               "-Ofast-compile=",
	                               "--Ofast-compile=",
	                               "--split-compile=",
	                               "-split-compile=",
	                               "--minimal",
	                               "-minimal",
	                               "--display-error-number",
	                               "--no-display-error-number",
	                               "-err-no",
	                               "--gen-opt-lto",
	                               "-time=",
	                               "--time=",
	                               "--builtin-move-forward=",
	                               "--builtin-initializer-list=",
	                               "--pch",
	                               "--relocatable-device-code=",
	                               "-rdc=" };

static bool
is_ignored(const char *o)
{
	const char *rest;

	for (size_t k = 0; k < sizeof ignored / sizeof *ignored; k++)
		if (ignored[k][strlen(ignored[k]) - 1] == '=' ? starts(o, ignored[k], &rest)
		                                              : !strcmp(o, ignored[k]))
			return true;
	return false;
}

/* Parses compute_90, sm_90, sm_90a, sm_100f; returns false if unknown. */
static bool
parse_arch(const char *text, NvrtcSource *s)
{
	int arch = 0, used = 0;

	s->ptx = !strncmp(text, "compute_", 8);
	if ((s->ptx || !strncmp(text, "sm_", 3)) &&
	    sscanf(text + (s->ptx ? 8 : 3), "%d%n", &arch, &used) == 1) {
		const char *tail = text + (s->ptx ? 8 : 3) + used;
		s->exact = !strcmp(tail, "a") || !strcmp(tail, "f");
		if (*tail && !s->exact)
			arch = 0;
	}
	s->arch = arch;
	for (int k = 0; k < n_archs(); k++)
		if (archs[k] == arch)
			return true;
	return false;
}

/* Translates option *i, whose value may be the next option, for the C compiler. Returns a malloc'd
 * string, or NULL if the option is not one of these. *missing: set if the option's value is
 * absent. */
static char *
translate(int n, const char *const *opt, int *i, bool *missing)
{
	static const struct {
		const char *from, *to;
	} long_form[] = { { "--define-macro=", "-D" },
		          { "--undefine-macro=", "-U" },
		          { "--include-path=", "-I" },
		          { "--std=", "-std=" },
		          { "-std=", "-std=" } };
	const char *o = opt[*i], *rest;
	char text[4096];

	*missing = false;
	if (!strcmp(o, "-D") || !strcmp(o, "-I") || !strcmp(o, "-U")) {
		if ((*missing = *i + 1 == n))
			return NULL;
		snprintf(text, sizeof text, "%s%s", o, opt[++*i]);
		return strdup(text);
	}
	for (size_t k = 0; k < sizeof long_form / sizeof *long_form; k++)
		if (starts(o, long_form[k].from, &rest)) {
			snprintf(text, sizeof text, "%s%s", long_form[k].to, rest);
			return strdup(text);
		}
	return starts(o, "-D", &rest) || starts(o, "-I", &rest) || starts(o, "-U", &rest)
	           ? strdup(o)
	           : NULL;
}

enum { MAX_OPTIONS = 64 };

/* Parses all options: stores the architecture in s, and options for the compiler in keep
 * (malloc'd). */
static nvrtcResult
parse_options(struct nvrtc_program *p, int n, const char *const *opt, NvrtcSource *s, char **keep,
              int *n_keep)
{
	for (int i = 0; i < n; i++) {
		const char *o = opt[i], *rest;
		bool missing;
		if (*n_keep == MAX_OPTIONS)
			return refuse(p, "too many options", o);
		if (starts(o, "--gpu-architecture=", &rest) || starts(o, "-arch=", &rest) ||
		    starts(o, "--gpu-architecture", &rest)) {
			if (!*rest && i + 1 < n)
				rest = opt[++i];
			if (!parse_arch(rest, s))
				return refuse(p, "invalid value for --gpu-architecture (-arch)",
				              rest);
			continue;
		}
		char *text = translate(n, opt, &i, &missing);
		if (missing)
			return refuse(p, "option needs a value", o);
		if (text)
			keep[(*n_keep)++] = text;
		else if (!is_ignored(o))
			return refuse(p, "unrecognized option", o);
	}
	return NVRTC_SUCCESS;
}

/* Compiles the program and keeps log and images. */
static nvrtcResult
compile(struct nvrtc_program *p, NvrtcSource *s)
{
	const char *mode = getenv("LLMC_EMU_MODE");
	Built object;
	char *log;
	bool built = build_object(s, mode && !strcmp(mode, "check"), &object, &log);

	build_release(&object);
	free(p->log);
	p->log = log;
	if (!built)
		return NVRTC_ERROR_COMPILATION;
	bool only_ptx = s->ptx;
	free(p->image);
	free(p->ptx);
	p->image = NULL;
	if (!only_ptx)
		p->image = image_write(s, &p->image_bytes);
	s->ptx = true;
	p->ptx = image_write(s, &p->ptx_bytes);
	p->compiled = true;
	return NVRTC_SUCCESS;
}

API(nvrtcResult, nvrtcCompileProgram, (nvrtcProgram p, int n, const char *const *opt))
{
	char *keep[MAX_OPTIONS];
	int n_keep = 0;
	NvrtcSource s = { .arch = 75, .ptx = true };

	if (!p)
		return NVRTC_ERROR_INVALID_PROGRAM;
	if (n < 0 || (n && !opt))
		return NVRTC_ERROR_INVALID_INPUT;
	nvrtcResult result = parse_options(p, n, opt, &s, keep, &n_keep);
	if (result == NVRTC_SUCCESS) {
		s.name = p->name;
		s.source = p->source;
		s.opt = (const char *const *)keep;
		s.n_opt = n_keep;
		s.header_name = (const char *const *)p->header_name;
		s.header = (const char *const *)p->header;
		s.n_header = p->n_header;
		result = compile(p, &s);
	}
	for (int i = 0; i < n_keep; i++)
		free(keep[i]);
	return result;
}

API(nvrtcResult, nvrtcGetProgramLogSize, (nvrtcProgram p, size_t *n))
{
	if (!p || !n)
		return p ? NVRTC_ERROR_INVALID_INPUT : NVRTC_ERROR_INVALID_PROGRAM;
	*n = strlen(p->log) + 1;
	return NVRTC_SUCCESS;
}

API(nvrtcResult, nvrtcGetProgramLog, (nvrtcProgram p, char *log))
{
	if (!p || !log)
		return p ? NVRTC_ERROR_INVALID_INPUT : NVRTC_ERROR_INVALID_PROGRAM;
	strcpy(log, p->log);
	return NVRTC_SUCCESS;
}

static nvrtcResult
give(const char *from, size_t bytes, size_t *n, char *to)
{
	if (n)
		*n = from ? bytes : 0;
	if (to) {
		if (!from)
			return NVRTC_ERROR_INVALID_PROGRAM;
		memcpy(to, from, bytes);
	}
	return NVRTC_SUCCESS;
}

API(nvrtcResult, nvrtcGetCUBINSize, (nvrtcProgram p, size_t *n))
{
	return p && n && p->compiled ? give(p->image, p->image_bytes, n, NULL)
	                             : NVRTC_ERROR_INVALID_PROGRAM;
}

API(nvrtcResult, nvrtcGetCUBIN, (nvrtcProgram p, char *to))
{
	return p && to && p->compiled ? give(p->image, p->image_bytes, NULL, to)
	                              : NVRTC_ERROR_INVALID_PROGRAM;
}

API(nvrtcResult, nvrtcGetPTXSize, (nvrtcProgram p, size_t *n))
{
	return p && n && p->compiled ? give(p->ptx, p->ptx_bytes, n, NULL)
	                             : NVRTC_ERROR_INVALID_PROGRAM;
}

API(nvrtcResult, nvrtcGetPTX, (nvrtcProgram p, char *to))
{
	return p && to && p->compiled ? give(p->ptx, p->ptx_bytes, NULL, to)
	                              : NVRTC_ERROR_INVALID_PROGRAM;
}

API(nvrtcResult, nvrtcAddNameExpression, (nvrtcProgram p, const char *name))
{
	(void)p, (void)name;
	return NVRTC_ERROR_BUILTIN_OPERATION_FAILURE; /* name lookup is not needed, because kernels
	                                                 are extern "C" */
}
