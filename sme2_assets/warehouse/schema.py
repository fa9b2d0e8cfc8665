"""The tables: names, types and meaning of every column.

The one place where a column is declared; writing casts to it, publishing comments with it, and
docs/tables.md is rendered from it. Views are in views.sql and insight_views.sql with their comments.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    comment: str


@dataclass(frozen=True)
class Table:
    """A table of the warehouse. `keys` are in the path of its files, so that queries can skip files."""

    name: str
    comment: str
    keys: tuple[Column, ...]
    columns: tuple[Column, ...]
    # Tables of many rows stay in Parquet behind a view; the others are copied into the published file.
    published_as_view: bool = False
    # Whether rows with other columns than these count as not there: `sme2 warehouse sync` makes them again.
    only_as_declared: bool = False

    @property
    def all_columns(self) -> tuple[Column, ...]:
        return self.keys + self.columns


VARIANT = Column("variant", "VARCHAR", "Model variant: model and precision, e.g. toy_cnn-fp16.")
TARGET = Column("target", "VARCHAR", "Platform and SME2 state, e.g. emulated-sme2_on.")
RUN_ID = Column("run_id", "VARCHAR", "The profile run: one arm of one session.")

IDENTITY = (
    Column("model", "VARCHAR", "Model without its precision."),
    Column("precision", "VARCHAR", "fp32, fp16, int8, int8_dynamic, int4, or as_is for a finished program."),
    Column("platform", "VARCHAR", "Where it ran: linux, mac, android or emulated."),
    Column("sme2", "VARCHAR", "on or off: the arm of the experiment."),
    Column(
        "threads",
        "INTEGER",
        "Threads of the runner's pool; runs of different thread counts are never compared.",
    ),
    Column(
        "fidelity",
        "VARCHAR",
        "hardware: native on AArch64. emulated: times mean nothing and never enter a speedup. reference: "
        "native on another instruction set, which says nothing about SME2.",
    ),
)
# What it ran on; runs of two devices are never compared and never form one series.
DEVICE = (
    Column(
        "device",
        "VARCHAR",
        "The one machine it ran on: a host by its CPU and six identifying digits (or SME2_DEVICE), a phone "
        "by a hash of its serial number, an emulated CPU by shape and vector length (emulated:m4:512).",
    ),
    Column(
        "arch",
        "VARCHAR",
        "Instruction set that was executed: aarch64, also under emulation, or that of a reference (x86_64).",
    ),
)
# How the device was set up for a session; series with different settings are never mixed.
SETTING = (
    Column(
        "cpus",
        "VARCHAR",
        "CPUs the runner was bound to, e.g. 4-7, or its QoS class on macOS; empty: neither.",
    ),
    Column("power_mode", "VARCHAR", "Power mode of the device during the session; empty: as it was."),
    Column(
        "method",
        "VARCHAR",
        "Method of the program that was run. Older runs, which ran forward, have NULL in tables.",
    ),
)
PROCESS = (
    Column(
        "pass",
        "VARCHAR",
        "latency (no tracer attached), etdump (operator times), kernels (sampled) or, under emulation, work "
        "(counted).",
    ),
    Column("round", "INTEGER", "Round of the session, from 0: one fresh process per arm and pass."),
    Column(
        "iteration",
        "INTEGER",
        "Inference within the process, as in its trace, from 0. Warm-up that is not traced is below 0, and "
        "of a long one only every nth inference is there.",
    ),
    Column("is_warmup", "BOOLEAN", "Whether the inference was warm-up; summaries leave it out."),
)

EMULATED_NS = Column(
    "emulated_ns", "BIGINT", "duration_ns of an emulated run: what the emulator took. It means nothing."
)

RUNS = Table(
    "runs",
    "One row per profile run: what was measured, where, and what it rests on.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("session_id", "VARCHAR", "The session; both arms of a pair share it."),
        Column(
            "sequence",
            "BIGINT",
            "The order of sessions, whatever their clocks said: each has a larger number than all that were "
            "in the data folder before it. 0 or NULL before there were numbers; those are the oldest.",
        ),
        Column(
            "experiment",
            "VARCHAR",
            "sme2: the arms differ in SME2. arms: they differ in another factor. aa: both arms are the same, "
            "to learn the noise. foreign: a trace imported by `sme2 ingest`; what is not known about it is "
            "NULL, and it is in no verdict.",
        ),
        Column(
            "factor",
            "VARCHAR",
            "What the arms of the session differ in: sme2, precision, option, model, change (as tried by "
            "`sme2 advise`), executorch, threads, cpus or power. NULL for one arm, for identical ones, and "
            "before it was recorded.",
        ),
        Column(
            "evidence_sha256",
            "VARCHAR",
            "Hash of the file in the run folder that lists the hashes of all its other files.",
        ),
        Column("source", "VARCHAR", "The file that a foreign run was read from; NULL for our own runs."),
        Column(
            "arm",
            "VARCHAR",
            "The arm of the session: off or on; a, b and so on where SME2 is not what differs.",
        ),
        Column("paired", "BOOLEAN", "Whether other arms were measured interleaved with it in this session."),
        *IDENTITY,
        Column("started_at", "TIMESTAMPTZ", "Start of the session."),
        Column("finished_at", "TIMESTAMPTZ", "End of the session."),
        Column("rounds", "INTEGER", "Rounds measured."),
        Column("warmup", "INTEGER", "Warm-up inferences per process, at least."),
        Column(
            "warmup_s",
            "DOUBLE",
            "Wall time of a warm-up, at least; 0: exactly `warmup` inferences. NULL in runs from before "
            "there was one.",
        ),
        Column("iterations", "INTEGER", "Timed inferences per process, at least."),
        Column("timed_s", "DOUBLE", "Wall time of the timed part, likewise."),
        Column(
            "paths",
            "INTEGER",
            "Operator sequences that its traced inferences took: more than one for several methods in a "
            "trace, or branches. Each has its own delegate calls and positions. NULL: not counted yet.",
        ),
        Column("seed", "BIGINT", "Seed of the arm order."),
        Column("pte_sha256", "VARCHAR", "Hash of the model file."),
        Column("runner_sha256", "VARCHAR", "Hash of the runner binary."),
        Column(
            "runner_pair",
            "VARCHAR",
            "What the runners of both arms share: the hash of the one binary, or of what two builds that "
            "differ only in the SME switches have in common.",
        ),
        *SETTING,
        Column("output_sha256", "VARCHAR", "Hash of the outputs."),
        Column(
            "sqnr_db",
            "DOUBLE",
            "Outputs against eager fp32, worst one, in dB; 200 means identical. NULL without an eager model.",
        ),
        Column(
            "sqnr_threshold_db",
            "DOUBLE",
            "What the precision must reach against eager.",
        ),
        Column("eager_fault", "VARCHAR", "Why an output does not match the eager model; NULL if all do."),
        Column("arms_sqnr_db", "DOUBLE", "Outputs of the arms against each other, in dB; NULL when alone."),
        Column(
            "arms_values",
            "INTEGER",
            "Values in which the arms were compared, each by its own bound: outputs, and values in between. "
            "NULL when alone, and for runs from before there were such bounds.",
        ),
        Column(
            "arms_of_bound",
            "DOUBLE",
            "Their largest error as a share of its bound; above 1 is a fault.",
        ),
        Column("arms_fault", "VARCHAR", "The first value in which the arms differ; NULL where none does."),
        Column("executorch_version", "VARCHAR", "Version of the ExecuTorch runtime in the runner."),
        Column("compiler", "VARCHAR", "Compiler of the runner."),
        *DEVICE,
        Column("device_model", "VARCHAR", "What the device calls itself; NULL for a host."),
        Column("soc", "VARCHAR", "System on chip of the device; NULL where it is not known."),
        Column("kernel", "VARCHAR", "Kernel of the operating system."),
        Column("memory_bytes", "BIGINT", "Memory of the machine."),
        Column("cpu", "VARCHAR", "CPU of the machine, or of the emulator."),
        Column("cores", "INTEGER", "Cores of the machine."),
        Column("os", "VARCHAR", "Operating system."),
        Column("emulator", "VARCHAR", "Emulator and its version; NULL on hardware."),
        Column("cpu_features_seen", "VARCHAR[]", "CPU features before masking."),
        Column("cpu_features_masked", "VARCHAR[]", "CPU features taken away for SME2 off."),
        Column("sme_vector_bits", "INTEGER", "Streaming vector length; NULL without SME."),
        Column(
            "roof_fp32_gflops",
            "DOUBLE",
            "What plain vector code reached on the device with the run's threads, after the session: 10^9 "
            "operations per second of 32-bit multiply-accumulates. No limit of the SME unit. NULL where it "
            "was not measured, and when emulated.",
        ),
        Column("roof_read_gb_s", "DOUBLE", "The same for reading memory: 10^9 bytes per second."),
        Column(
            "steady",
            "BOOLEAN",
            "Whether nine of ten processes ended their warm-up steady; NULL for a warm-up of fixed length.",
        ),
        Column(
            "passes_agree",
            "BOOLEAN",
            "Whether untraced, traced and sampled inferences show the same speed. false: a costlier pass was "
            "faster than a cheaper one, so no time of the run is a headline. NULL where that is unknown.",
        ),
        Column("passes_reason", "VARCHAR", "Why they do not agree, or why that is unknown."),
        Column(
            "tracer_overhead",
            "DOUBLE",
            "What the tracer costs: time with it over time without it, minus 1, over paired rounds. NULL "
            "when emulated.",
        ),
        Column("tracer_overhead_low", "DOUBLE", "Lower end of its 95 % interval; NULL with too few rounds."),
        Column("tracer_overhead_high", "DOUBLE", "Upper end of it."),
        Column("sampler_overhead", "DOUBLE", "The same for tracer and sampler together."),
        Column(
            "flags",
            "VARCHAR[]",
            "What was wrong with the machine around a round, e.g. busy. NULL where nothing is known to have "
            "been, and nobody saw what else it did.",
        ),
        Column("load_before", "DOUBLE", "One-minute load average before the session."),
        Column("load_after", "DOUBLE", "One-minute load average after the session."),
        Column(
            "load_ns", "BIGINT", "Model load time, median over the latency processes; NULL when emulated."
        ),
        Column("peak_memory_bytes", "BIGINT", "Peak memory of a latency process, largest."),
        Column("samples", "BIGINT", "Samples of the kernels pass; 0 when there was none."),
        Column("samples_dropped", "BIGINT", "Samples lost because the runner's buffer was full."),
        Column(
            "derivation",
            "INTEGER",
            "Version of the code that made the rows of this run; NULL before there were versions. "
            "`sme2 warehouse rebuild` makes all rows with the current one.",
        ),
    ),
)

INFERENCES = Table(
    "inferences",
    "One row per inference of every process.",
    (VARIANT, TARGET, RUN_ID),
    (
        *PROCESS,
        Column("duration_ns", "BIGINT", "Inference time by the runner's own clock; NULL when emulated."),
        Column(
            "cycles",
            "BIGINT",
            "CPU cycles of the measuring thread in the inference, outside the kernel; NULL where the system "
            "does not count them, and for warm-up.",
        ),
        Column(
            "execute_ns",
            "BIGINT",
            "Method::execute by the tracer; NULL in the latency pass and when emulated. Timeline rows add up "
            "to it exactly.",
        ),
        EMULATED_NS,
        Column("emulated_execute_ns", "BIGINT", "execute_ns of an emulated run. It means nothing."),
    ),
    published_as_view=True,
)

TIMELINE = Table(
    "timeline",
    "Every nanosecond of Method::execute in exactly one row: operators, delegate and framework overhead.",
    (VARIANT, TARGET, RUN_ID),
    (
        *IDENTITY,
        *PROCESS,
        Column("kind", "VARCHAR", "operator, delegate_overhead or framework_overhead."),
        Column(
            "delegate",
            "INTEGER",
            "Delegate call within the inference, from 0; those of another operator sequence follow. NULL "
            "outside delegates.",
        ),
        Column(
            "position",
            "INTEGER",
            "Position of the operator within its delegate, or among the portable operators.",
        ),
        Column("name", "VARCHAR", "The name in the trace, unchanged."),
        Column("op_type", "VARCHAR", "Operator type without data types and numbers, e.g. Fully Connected."),
        Column("data_type", "VARCHAR", "Data type token of an XNNPACK operator, e.g. PF32; NULL elsewhere."),
        Column("category", "VARCHAR", "CONV, GEMM, Data Movement, Elementwise or Other; NULL for overhead."),
        Column("known", "BOOLEAN", "Whether the categoriser knows the operator; unknown ones are Other."),
        Column(
            "backend",
            "VARCHAR",
            "xnnpack, portable or framework; another delegate, and a call without rows, by the name of its "
            "backend, or as other delegate where the program does not name it.",
        ),
        Column(
            "start_ns",
            "BIGINT",
            "Start since Method::execute; back to back for XNNPACK operators. NULL for overhead. "
            "For an emulated run it gives only the order.",
        ),
        Column("duration_ns", "BIGINT", "Time; NULL when emulated. XNNPACK reports whole microseconds."),
        EMULATED_NS,
        Column(
            "sme2_evidence",
            "VARCHAR",
            "By name alone. name: the operator's name implies an SME2 kernel; none: it does not. "
            "operator_facts has the evidence of the samples too.",
        ),
    ),
    published_as_view=True,
)

OPERATORS = Table(
    "operators",
    "What each operator of a run is: the line of the model it comes from, its shapes and its work.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("backend", "VARCHAR", "xnnpack, portable or another delegate, as in timeline."),
        Column("delegate", "INTEGER", "Delegate call within the inference; NULL outside delegates."),
        Column("position", "INTEGER", "Position of the operator, as in timeline."),
        Column(
            "attribution",
            "VARCHAR",
            "exact (portable, by order and name), aligned (one place in the model fits), inserted (by the "
            "delegate, no line asked for it), ambiguous (several fit) or none.",
        ),
        Column("node_kind", "VARCHAR", "Node of the exported program, e.g. XNNConv2d."),
        Column("edge_ops", "VARCHAR[]", "Edge operators that the node stands for; several when fused."),
        Column("module", "VARCHAR", "Path of the PyTorch module, e.g. features.3.conv."),
        Column("module_type", "VARCHAR", "Class of that module."),
        Column("source", "VARCHAR", "File and line of the model's code."),
        Column("code", "VARCHAR", "That line."),
        Column(
            "input_shape",
            "VARCHAR",
            "Shape of the first input, e.g. 1x64x64x3: XNNPACK has the channels last.",
        ),
        Column("output_shape", "VARCHAR", "Shape of the output."),
        Column("macs", "BIGINT", "Multiply-accumulates of one inference; NULL where they are not counted."),
        Column("groups", "INTEGER", "Groups of a convolution."),
        Column("kernel_size", "VARCHAR", "Kernel of a convolution or pooling, e.g. 3x3."),
        Column(
            "reads",
            "VARCHAR[]",
            "Tensors that it reads: those that another operator writes, and the inputs. Operators that were "
            "fused away are looked through. Empty or NULL where the program does not say.",
        ),
        Column(
            "writes", "VARCHAR[]", "Tensors that it writes. Empty or NULL where the program does not say."
        ),
    ),
    published_as_view=True,
)

DELEGATION = Table(
    "delegation",
    "Which operators of the model XNNPACK took, which it did not, and why.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("operator", "VARCHAR", "Edge operator, e.g. aten.mean.dim."),
        Column("module", "VARCHAR", "Path of the PyTorch module."),
        Column("source", "VARCHAR", "File and line of the model's code."),
        Column("delegated", "BOOLEAN", "Whether it is inside a delegate."),
        Column("reason", "VARCHAR", "Why it is not; NULL where it is."),
        Column("count", "INTEGER", "Operators of this kind on that line."),
    ),
)

NUMERICS = Table(
    "numerics",
    "Each output of a run against that of the eager fp32 model on the same inputs.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("output", "INTEGER", "Output of the model, from 0."),
        Column("sqnr_db", "DOUBLE", "Signal to quantisation-noise ratio in dB; 200 means identical."),
        Column("max_abs_error", "DOUBLE", "Largest difference; NULL if shapes differ or it is not finite."),
        Column("cosine", "DOUBLE", "Cosine of the angle between the two; NULL where it has no meaning."),
        Column("equal_share", "DOUBLE", "Share of elements that are exactly the same."),
        Column("top1_agreement", "DOUBLE", "Share of rows with the same largest element; classifiers only."),
        Column("worst_part_db", "DOUBLE", "The ratio of the worst channel or row; NULL for integers."),
        Column("correlation", "DOUBLE", "Correlation of what varies in both; NULL where nothing does."),
    ),
)

ARMS_NUMERICS = Table(
    "arms_numerics",
    "The arms of a pair against each other, value by value: outputs, and what each matrix operator gives.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("name", "VARCHAR", "The output, or the operator whose result it is."),
        Column("operator", "VARCHAR", "The operator as torch.export calls it; empty for an output."),
        Column("module", "VARCHAR", "The module that it belongs to."),
        Column("kind", "VARCHAR", "Which bound holds: fp32, fp16, static, dynamic or unknown."),
        Column("elements", "BIGINT", "Elements that were compared."),
        Column("equal_share", "DOUBLE", "Share of elements that are exactly the same."),
        Column("largest_error", "DOUBLE", "Largest difference; in steps for 8-bit values."),
        Column(
            "of_bound",
            "DOUBLE",
            "The largest error as a share of its bound; above 1 is a fault.",
        ),
        Column("fault", "VARCHAR", "How the arms differ; NULL where they agree."),
    ),
    published_as_view=True,
)

# What was executing, and in which function.
EXECUTING = (
    Column(
        "kind",
        "VARCHAR",
        "What was executing: operator, delegate_overhead, framework_overhead, between inferences, or "
        "unattributed.",
    ),
    Column("backend", "VARCHAR", "As in timeline; NULL when not attributed."),
    Column("delegate", "INTEGER", "Delegate call; NULL outside delegates."),
    Column("position", "INTEGER", "Position of the operator, as in timeline; NULL outside operators."),
    Column("thread_kind", "VARCHAR", "main or pool."),
    Column("library", "VARCHAR", "Library of the function; NULL when the address is in none."),
    Column("function_offset", "BIGINT", "Where the function starts in its library."),
    Column("symbol", "VARCHAR", "Name of the function; NULL when the library does not export it."),
    Column("kernel_family", "VARCHAR", "What the kernel computes, from its name, e.g. gemm."),
    Column("role", "VARCHAR", "compute, pack, query or other, from its name; NULL without a name."),
    Column("data_types", "VARCHAR", "Data types of the kernel, from its name."),
    Column("tile", "VARCHAR", "Tile of the kernel, from its name."),
    Column("isa", "VARCHAR", "Instruction set of the kernel, from its name, e.g. sme2 or neon."),
    Column("unit", "VARCHAR", "SME, SVE, SIMD/FP, load/store, other or unknown, from the instruction."),
)

KERNEL_SAMPLES = Table(
    "kernel_samples",
    "Program counters sampled in the kernels pass, counted by operator, function and unit. None is dropped.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("round", "INTEGER", "Round of the session."),
        *EXECUTING,
        Column("samples", "BIGINT", "Samples."),
        Column(
            "near_boundary_samples",
            "BIGINT",
            "Those so near the border of two operators that the trace's microseconds cannot tell which one.",
        ),
    ),
    published_as_view=True,
)

OPERATOR_WORK = Table(
    "operator_work",
    "Every instruction that an emulated inference executed, counted by operator, function and class. It is "
    "work, with one thread the same every time, and never time: instructions do not take equally long.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("round", "INTEGER", "Round of the session."),
        *EXECUTING,
        Column(
            "class",
            "VARCHAR",
            "Class of the instructions: outer product, multiply to ZA, SVE or SIMD multiply-add, load, "
            "store, streaming entry, branch and so on; each instruction is in one, and one that nobody knows "
            "is in unknown.",
        ),
        Column(
            "instruction",
            "VARCHAR",
            "What is multiplied, as the architecture names it, e.g. FMOPA fp32; NULL where nothing is.",
        ),
        Column("instructions", "BIGINT", "Instructions executed in one inference."),
        Column(
            "multiply_accumulates",
            "BIGINT",
            "Multiply-accumulates that they are, those of lanes that a predicate switches off included.",
        ),
        Column(
            "bytes",
            "BIGINT",
            "Bytes that they load or store. Vectors of SVE count as long as streaming ones, also outside "
            "streaming mode.",
        ),
    ),
    published_as_view=True,
)

REGISTERED_KERNELS = Table(
    "registered_kernels",
    "Kernels that XNNPACK said it would use, from the log of a runner built with its logging. They may "
    "never have run.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("operator", "VARCHAR", "What the kernel is for, as the log says."),
        Column("kernel", "VARCHAR", "Name of the kernel."),
        Column("kernel_family", "VARCHAR", "What it computes, from its name."),
        Column("data_types", "VARCHAR", "Its data types, from its name."),
        Column("isa", "VARCHAR", "Its instruction set, from its name."),
    ),
)

ENVIRONMENT = Table(
    "environment",
    "The machine before and after every round.",
    (VARIANT, TARGET, RUN_ID),
    (
        Column("round", "INTEGER", "Round of the session."),
        Column("moment", "VARCHAR", "before or after the round."),
        Column("at", "TIMESTAMPTZ", "When the machine was looked at."),
        Column("load_1m", "DOUBLE", "One-minute load average."),
        Column("cpu_mhz", "DOUBLE", "Mean CPU frequency; NULL where it cannot be read."),
        Column("governor", "VARCHAR", "Frequency governor; NULL where it cannot be read."),
        Column("temperature_c", "DOUBLE", "Hottest readable sensor; NULL where none can be read."),
        Column("other_cores", "DOUBLE", "Cores that all others kept busy; NULL where they cannot be seen."),
        Column("heavy_processes", "VARCHAR[]", "Other processes that used much CPU, with their cores."),
        Column(
            "stolen_s",
            "DOUBLE",
            "CPU seconds that the hypervisor gave to others during the round; NULL before it, and where "
            "they are not counted.",
        ),
        Column("flags", "VARCHAR[]", "What was wrong, after waiting for it to pass."),
    ),
)

COMPARISONS = Table(
    "comparisons",
    "Each arm of a session against its first: the whole model, each category, each operator. `factor` says "
    "what they differ in; columns with a are about the first arm, those with b about the other one. With the "
    "factor sme2, a is off and b is on.",
    (
        Column("variant", "VARCHAR", "Model variant of the first arm."),
        Column("platform", "VARCHAR", "Where it ran."),
        Column("session_id", "VARCHAR", "The session that measured both arms."),
    ),
    (
        Column(
            "factor",
            "VARCHAR",
            "What the arms differ in, as in runs: sme2, precision, option, model, change, executorch, "
            "threads, cpus or power. NULL in an A/A session: both arms are the same.",
        ),
        Column(
            "a_value",
            "VARCHAR",
            "What the factor is in the first arm, such as off, fp16 or 1; empty where nothing was chosen. "
            "NULL in an A/A session.",
        ),
        Column("b_value", "VARCHAR", "What it is in the second arm."),
        Column("model", "VARCHAR", "Model without its precision."),
        Column(
            "precision", "VARCHAR", "fp32, fp16, int8, int8_dynamic, int4, or as_is for a finished program."
        ),
        *DEVICE,
        Column("threads", "INTEGER", "Threads of the runner's pool, of the first arm."),
        *SETTING,
        Column("fidelity", "VARCHAR", "hardware or emulated, as in runs."),
        Column("a_run_id", "VARCHAR", "The run of the first arm."),
        Column("b_run_id", "VARCHAR", "The run of the second arm."),
        Column("level", "VARCHAR", "model, category or operator."),
        Column("category", "VARCHAR", "Category of the row; NULL at model level."),
        Column("backend", "VARCHAR", "Backend of the operator; NULL at the other levels."),
        Column("delegate", "INTEGER", "Delegate call of the operator; NULL elsewhere."),
        Column(
            "position",
            "INTEGER",
            "Position of the operator in the first arm, or in the second if it is only there.",
        ),
        Column(
            "b_position",
            "INTEGER",
            "Its position in the second arm: different if an arm has more operators. NULL where it has none.",
        ),
        Column("op_type", "VARCHAR", "Operator type; NULL at the other levels."),
        Column("a_name", "VARCHAR", "Name of the operator in the first arm."),
        Column("b_name", "VARCHAR", "Name in the second arm; another kernel often has another name."),
        Column("operators", "INTEGER", "Operators of the row in the second arm; 0 if only the first has it."),
        Column("matrix_operators", "INTEGER", "Convolutions and matrix products in the second arm."),
        Column(
            "sme2_operators_a",
            "INTEGER",
            "Those on the SME unit in the first arm, as in operator_facts; with SME2 off that must be 0. "
            "NULL on a reference, which says nothing about SME2.",
        ),
        Column("sme2_operators_b", "INTEGER", "The same in the second arm."),
        Column(
            "sme2_operators_unknown",
            "INTEGER",
            "Those for which it is unknown in the second arm; NULL on a reference.",
        ),
        Column(
            "a_ns",
            "DOUBLE",
            "Time of the first arm: median over rounds of per-process medians. NULL when emulated.",
        ),
        Column("b_ns", "DOUBLE", "The same of the second arm. NULL when emulated."),
        Column(
            "speedup",
            "DOUBLE",
            "a / b over paired rounds, with the factor sme2 off / on; above 1 the second arm is faster. NULL "
            "when not comparable, and where XNNPACK's whole microseconds leave it open by a factor of more "
            "than 1.25.",
        ),
        Column("speedup_low", "DOUBLE", "Lower end of its 95 % interval, whatever the clock hides."),
        Column("speedup_high", "DOUBLE", "Upper end of its 95 % interval, whatever the clock hides."),
        Column(
            "bound_low",
            "DOUBLE",
            "The least that the speedup of these very rounds can be, however XNNPACK floored their times; "
            "the speedup itself where the clock is exact.",
        ),
        Column("bound_high", "DOUBLE", "The most that it can be."),
        Column("n", "INTEGER", "Paired rounds the speedup rests on."),
        Column("p_value", "DOUBLE", "Exact signed-rank test over the rounds; NULL with too few."),
        Column("p_adjusted", "DOUBLE", "The same, adjusted for how many are compared at this level."),
        Column(
            "minimal_detectable_effect",
            "DOUBLE",
            "The smallest ratio that these rounds would have shown with 80 % power, noise floor and clock "
            "considered; NULL with too few.",
        ),
        Column("slow_rounds_a", "INTEGER", "Rounds of the first arm that form a slow mode of their own."),
        Column("slow_rounds_b", "INTEGER", "The same of the second arm."),
        Column(
            "noise_floor",
            "DOUBLE",
            "Ratio below which a difference is noise: the largest of aa_noise_floor, what the placebo "
            "operators together differ by, and, except for the whole model, placebo_scatter. NULL without "
            "any of them.",
        ),
        Column("aa_noise_floor", "DOUBLE", "Ratio that A/A sessions reach here; NULL with too few of them."),
        Column(
            "placebo",
            "BOOLEAN",
            "Whether the operator has the same kernel in both arms, and is long enough to show a bias.",
        ),
        Column("placebo_operators", "INTEGER", "Such operators of the session; NULL when not comparable."),
        Column("placebo_ratio", "DOUBLE", "a / b of their total time, which is 1 except for bias and noise."),
        Column("placebo_low", "DOUBLE", "Lower end of its 95 % interval."),
        Column("placebo_high", "DOUBLE", "Upper end of its 95 % interval."),
        Column(
            "placebo_scatter",
            "DOUBLE",
            "Ratio that 95 % of them stay within, each on its own; NULL with fewer than ten.",
        ),
        Column(
            "confidence",
            "VARCHAR",
            "high, medium or low: how far the times of the session can be relied on, whatever the verdict. "
            "NULL where they do not compare.",
        ),
        Column("confidence_reason", "VARCHAR", "Why, in a clause."),
        Column(
            "verdict",
            "VARCHAR",
            "faster, slower, no difference, too small to count, insufficient data, or not comparable.",
        ),
        Column("reason", "VARCHAR", "The reason for the verdict, in a sentence."),
    ),
    only_as_declared=True,
)

REGRESSIONS = Table(
    "regressions",
    "Slow-downs in the history of a series, found by change-point detection, and steps to more counted work; "
    "rewritten by its asset.",
    (),
    (
        VARIANT,
        Column("platform", "VARCHAR", "Where it ran."),
        *DEVICE,
        Column("threads", "INTEGER", "Threads of the runner's pool."),
        *SETTING,
        Column("sme2", "VARCHAR", "The arm: on or off."),
        Column("fidelity", "VARCHAR", "hardware, reference or emulated, as in runs."),
        Column(
            "category",
            "VARCHAR",
            "Operator category; latency: the whole inference without tracer; work: what all operators of an "
            "emulated run executed, which is not time.",
        ),
        Column("night", "TIMESTAMPTZ", "Start of the first run that is slower, or executes more."),
        Column("run_id", "VARCHAR", "That run."),
        Column("before_ns", "DOUBLE", "Median before the change; NULL for work."),
        Column("after_ns", "DOUBLE", "Median from the change on; NULL for work."),
        Column("before_instructions", "BIGINT", "Instructions of the run before; NULL for times."),
        Column("after_instructions", "BIGINT", "Those of this run."),
        Column(
            "before_macs_on_unit",
            "DOUBLE",
            "Share of the multiply-accumulates on the SME unit in the run before; NULL for times.",
        ),
        Column("after_macs_on_unit", "DOUBLE", "That of this run."),
        Column(
            "changed",
            "VARCHAR",
            "What else is new since the run before: program, ExecuTorch, runner, emulator. NULL for times.",
        ),
        Column("ratio", "DOUBLE", "after / before, of times or instructions: above 1 it got slower or more."),
        Column(
            "p_value",
            "DOUBLE",
            "Chance of such a step if nights carry over to the next and nothing changes; NULL for work.",
        ),
        Column(
            "others_watched",
            "INTEGER",
            "Series of other models on the device with at least 3 runs on both sides of the step.",
        ),
        Column(
            "others_slower",
            "INTEGER",
            "Those that slowed down at the same time, by half as much or more.",
        ),
        Column("acknowledged", "BOOLEAN", "Whether a person has listed it in data/acknowledged.txt."),
    ),
)

BLIND_TRIALS = Table(
    "blind_trials",
    "Identical arms, the second slowed down by an amount unknown to the verdict: is it found?",
    (),
    (
        Column("session_id", "VARCHAR", "The session of the trial; its runs are in no other table."),
        VARIANT,
        Column("platform", "VARCHAR", "Where it ran."),
        Column("sme2", "VARCHAR", "The state of both arms."),
        *DEVICE,
        Column("fidelity", "VARCHAR", "hardware or reference, as in runs."),
        Column("threads", "INTEGER", "Threads of the runner's pool."),
        Column("cpus", "VARCHAR", "CPUs the runner was bound to, as in runs."),
        Column("power_mode", "VARCHAR", "Power mode of the device, as in runs."),
        Column("started_at", "TIMESTAMPTZ", "Start of the session."),
        Column("seconds", "DOUBLE", "How long the session took."),
        Column(
            "inference_seconds", "DOUBLE", "How much of that was inferences of both arms, warm-up included."
        ),
        Column("ratio", "DOUBLE", "Time of the second arm over that of the first; above 1 it is slower."),
        Column("ratio_low", "DOUBLE", "Lower end of its 95 % interval; NULL with too few rounds."),
        Column("ratio_high", "DOUBLE", "Upper end of its 95 % interval."),
        Column("single_process_ratio", "DOUBLE", "The same ratio from one process of each arm, the first."),
        Column("n", "INTEGER", "Paired rounds."),
        Column("noise_floor", "DOUBLE", "Ratio that identical arms reach here; NULL when not known."),
        Column("verdict", "VARCHAR", "What was said about the second arm, before the truth was read."),
        Column("dose_percent", "DOUBLE", "The truth: how much slower the second arm was made; 0: a placebo."),
    ),
)

ADVICE = Table(
    "advice",
    "Changes to a model that `sme2 advise` tried under emulation, and what each brought onto the SME unit.",
    (),
    (
        VARIANT,
        Column("rank", "INTEGER", "0: the model as it is; then the largest gain first, the unmeasured last."),
        Column("change", "VARCHAR", "The change, as `sme2 profile` takes it; or: as it is."),
        Column("what", "VARCHAR", "The change in words."),
        Column("code", "VARCHAR", "The code to write; NULL for another precision."),
        Column("problem", "VARCHAR", "Why it could not be measured; NULL where it was."),
        Column("run_id", "VARCHAR", "Its emulated run with SME2 on; NULL where it was not measured."),
        Column(
            "share",
            "DOUBLE",
            "Share of the multiply-accumulates of the model as it is that are then on the unit.",
        ),
        Column("gain", "DOUBLE", "By how much that share grows; NULL where nothing is counted."),
        Column(
            "recommended",
            "BOOLEAN",
            "Whether it gains more than a percentage point; or as much is on the unit, with fewer calls, or "
            "as many and fewer operators.",
        ),
        Column("matrix_operators", "INTEGER", "Convolutions and matrix products with the change."),
        Column("on_unit", "INTEGER", "Those of them on the SME unit."),
        Column("operators", "INTEGER", "All operators of one inference with the change."),
        Column("delegate_calls", "INTEGER", "Delegate calls in one inference with the change."),
        Column("outside", "INTEGER", "Operators of the model that no delegate takes with the change."),
        Column("program_bytes", "BIGINT", "Size of the exported program."),
        Column("worst_db", "DOUBLE", "Worst output against the eager model, as in numerics."),
        Column("onto_unit", "VARCHAR[]", "Operators that come onto the unit, by module and line."),
    ),
)

TABLES = (
    RUNS,
    INFERENCES,
    TIMELINE,
    OPERATORS,
    DELEGATION,
    NUMERICS,
    ARMS_NUMERICS,
    KERNEL_SAMPLES,
    OPERATOR_WORK,
    REGISTERED_KERNELS,
    ENVIRONMENT,
    COMPARISONS,
    REGRESSIONS,
    BLIND_TRIALS,
    ADVICE,
)
