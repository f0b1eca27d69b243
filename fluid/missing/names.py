"""What takes the place of each name of Fluid that is not here, by module."""

from fluid.missing.advice import instead_of

of_layers = instead_of(
    "fluid.layers",
    {
        "Assert": "assert for shapes, and fluid.handlers.TerminateOnNaN for numbers that are not finite",
        "IfElse": "layers.where(condition, x, y) to choose for each example, layers.cond(pred, true_fn, false_fn) for "
        "all, or fluid.static",
        "ParallelDo": "one program: every program is compiled for the whole device",
        "Switch": "layers.case([(condition, lambda: value), ...], default=lambda: value), which returns the value that "
        "a Switch would assign, or fluid.static",
        "While": "layers.while_loop(cond, body, loop_vars), which returns the values that the block would change, or "
        "fluid.static",
        "autoincreased_step_counter": 'layers.create_state([1], "int32"), whose update() counts, or fluid.static',
        "beam_search_decode": "layers.beam_search, which is the whole search over a function for one step, "
        "layers.dynamic_decode with a layers.BeamSearchDecoder, or fluid.static",
        "continuous_value_model": "layers.slice, to cut the first two columns off",
        "create_global_var": "layers.create_state(shape, initializer=value), whose update() changes it, or "
        "fluid.static",
        "create_py_reader_by_data": "a reader, fluid.reader.buffered(reader, 64), which trainer.train takes, or "
        "fluid.static",
        "create_tensor": "layers.fill_constant, or fluid.static for a variable to assign to",
        "deformable_roi_pooling": "layers.roi_align, or layers.prroi_pool, through which regions receive a gradient",
        "detection_map": "fluid.metrics.DetectionMAP, a metric for trainer.test(metrics=...)",
        "double_buffer": "nothing: the next minibatch goes to the device while a step runs; readers that wait go "
        "through fluid.reader.buffered, or fluid.static",
        "filter_by_instag": "a reader that leaves rows out, or layers.where",
        "generate_mask_labels": "masks that the reader draws from the polygons, and layers.roi_align to pool their "
        "regions",
        "get_places": "nothing: a program runs on one device, fluid.CUDAPlace(0)",
        "get_tensor_from_selected_rows": "nothing: gradients of sparse tables are arrays",
        "hash": "a hash that the reader computes, or layers.elementwise_mod(ids, y)",
        "inplace_abn": "layers.batch_norm(x, act=...), whose memory XLA uses again by itself",
        "is_empty": "x.size == 0 of Python: shapes are known",
        "load": "fluid.io.load_params(session, folder)",
        "locality_aware_nms": "layers.multiclass_nms, which does not average boxes",
        "lod_rank_table": "nothing: sequences are padded, and never sorted",
        "max_sequence_len": "x.lengths.max() of a SequenceBatch",
        "merge_selected_rows": "nothing: rows of sparse gradients are merged by themselves",
        "open_files": "a reader that reads them, fluid.reader.xmap",
        "py_reader": "a reader, fluid.reader.buffered(reader, 64), which trainer.train takes, or fluid.static",
        "random_crop": "a reader that crops, or layers.crop_tensor at offsets of layers.uniform_random",
        "read_file": "layers.data, once for each field, or fluid.static",
        "reorder_lod_tensor_by_rank": "nothing: sequences are padded, and never sorted",
        "roi_perspective_transform": "layers.roi_align for upright regions, layers.grid_sampler for rotated ones",
        "similarity_focus": "layers.one_hot of layers.argmax",
        "tensor_array_to_tensor": "layers.concat or layers.stack of a list of values",
    },
)

of_fluid = instead_of(
    "fluid",
    {
        "AsyncExecutor": "fluid.Trainer",
        "BuildStrategy": "nothing: XLA chooses how a program is built; fluid.static accepts one",
        "CUDAPinnedPlace": "fluid.CPUPlace: the host's memory is pinned where JAX needs it",
        "CompiledProgram": "the program function: every program is compiled; or fluid.static",
        "DataFeedDesc": "a reader, fluid.reader.map",
        "DatasetFactory": "a reader, fluid.reader.xmap",
        "DistributeTranspiler": "one device: fluid.Trainer with accumulate_steps= of the optimizer",
        "DistributeTranspilerConfig": "one device: fluid.Trainer with accumulate_steps= of the optimizer",
        "ExecutionStrategy": "nothing: XLA schedules a program; fluid.static accepts one",
        "Executor": "fluid.Session(program), session.run(program, feed=..., fetch=...), or fluid.static",
        "LoDTensorArray": "layers.create_array(dtype, max_length=...)",
        "ParallelExecutor": "fluid.Trainer or fluid.Session: every program is compiled; or fluid.static",
        "Tensor": "a NumPy array, or fluid.LoDTensor for sequences",
        "Variable": "the arrays that layers return, or fluid.static",
        "append_backward": 'fetch=["fc_0.w_0@GRAD"] of fluid.Session.run, or fluid.static',
        "backward": 'fetch=["fc_0.w_0@GRAD"] of fluid.Session.run, or fluid.static',
        "cpu_places": "fluid.CPUPlace()",
        "create_random_int_lodtensors": "fluid.create_random_int_lodtensor",
        "cuda_places": "fluid.CUDAPlace(0)",
        "dataset": "data that you load yourself, in a fluid.reader.Reader",
        "default_main_program": "a program function, fluid.Session(program), or fluid.static",
        "default_startup_program": "nothing: a fluid.Session starts with initial values; or fluid.static",
        "device_guard": "place= of fluid.Trainer",
        "dygraph": "program functions, whose values are arrays: print(x) shows them, fluid.layers.Print while they run",
        "enable_dygraph": "program functions; there is one way to run them",
        "evaluator": "fluid.metrics, with trainer.test(metrics=...)",
        "global_scope": "session.scope of a fluid.Session, or fluid.static",
        "gradients": 'fetch=["x@GRAD"] of fluid.Session.run, or fluid.static',
        "in_dygraph_mode": "False: there are only program functions",
        "install_check": "python -m fluid",
        "is_compiled_with_cuda": "fluid.core.is_compiled_with_cuda",
        "load": "fluid.io.load_persistables, or fluid.io.load_fluid_params for what the original saved",
        "load_op_library": "fluid.layers.py_func, or a function of JAX",
        "memory_optimize": "nothing: XLA plans the memory",
        "profiler": "fluid.handlers.Profiler",
        "program_guard": "a program function for each program, or fluid.static",
        "release_memory": "nothing: XLA plans the memory",
        "require_version": "fluid.__version__",
        "save": "fluid.io.save_persistables",
        "scope_guard": "a fluid.Session for each scope, or fluid.static",
        "set_flags": "settings of JAX, jax.config.update",
        "transpiler": "nothing: every program is compiled; fluid.Trainer for one device",
    },
)

of_io = instead_of(
    "fluid.io",
    {
        "DataLoader": "a fluid.reader.Reader, which fluid.Trainer.train takes, or fluid.static",
        "PyReader": "a fluid.reader.Reader, which fluid.Trainer.train takes, or fluid.static",
        "batch": "fluid.batch",
        "buffered": "fluid.reader.buffered",
        "cache": "fluid.reader.cache",
        "chain": "fluid.reader.chain",
        "compose": "fluid.reader.compose",
        "firstn": "fluid.reader.firstn",
        "get_program_parameter": "fluid.Program(program).parameters",
        "get_program_persistable_vars": "fluid.Program(program).parameters and .states",
        "load": "fluid.io.load_persistables",
        "load_program_state": "fluid.io.load_arrays, or fluid.io.load_fluid_params for what the original saved",
        "load_vars": "fluid.io.load_params(session, folder), or fluid.static",
        "map_readers": "fluid.reader.map_readers",
        "multiprocess_reader": "fluid.reader.xmap",
        "save": "fluid.io.save_persistables",
        "save_vars": "fluid.io.save_params(session, folder, names=[...]), or fluid.static",
        "set_program_state": "session.load_params(arrays) of a fluid.Session",
        "shuffle": "fluid.reader.shuffle",
        "xmap_readers": "fluid.reader.xmap_readers",
    },
)

of_clip = instead_of(
    "fluid.clip",
    {
        "ErrorClipByValue": "fluid.clip.GradientClipByValue, or a jax.custom_vjp around a value",
        "append_gradient_clip_ops": "grad_clip= of fluid.optimizer.Adam and the others",
        "error_clip_callback": "fluid.clip.GradientClipByValue",
    },
)

of_metrics = instead_of(
    "fluid.metrics",
    {
        "MetricsBase": "fluid.metrics.MetricBase",
    },
)
