"""Persian templates of the rules about sources, of their remedies, and of what knobs do."""

from collections.abc import Mapping

_AUTOTUNE_CALLS = "num_parallel_calls=tf.data.AUTOTUNE یا عددی از config بدهید."

RULES: Mapping[str, str] = {
    "code.no-command": "معلوم نیست آموزش چطور شروع می‌شود",
    "code.no-script": "دستور، هیچ script از Python را اجرا نمی‌کند که اینجا پیدا شود",
    "code.module": "ماژول {module} زیر این پوشه نیست؛ بسته‌های نصب‌شده خوانده نمی‌شوند",
    "code.read": "{files} فایل کد خوانده شد",
    "code.large": "{file} خوانده نشد: بزرگ‌تر از {size} MiB است",
    "code.large-together": "{file} خوانده نشد: کدها روی هم بزرگ‌تر از {size} MiB هستند",
    "code.no-python": "{place} برای این نسخه Python نیست: {error}",
    "code.unreadable": "{file} به عنوان Python خوانده نمی‌شود: {error}",
    "code.native": "{key} را true کنید، که Python را از بارکردن داده کنار می‌گذارد؛ یا: {remedy}",
    "rule.eager-by-hand": "مدل op به op اجرا می‌شود، که برای پیدا کردن bug است",
    "rule.eager-by-hand.remedy": "run_eagerly یا run_functions_eagerly را بردارید.",
    "rule.eager-step": "وزن‌ها op به op به‌روز می‌شوند: هیچ چیز tf.function را روی این step نمی‌گذارد",
    "rule.eager-step.remedy": "@tf.function را روی تابعی بگذارید که gradientها را حساب و اعمال می‌کند.",
    "rule.checks-every-number": "هر عدد step بررسی می‌شود، که برای پیدا کردن bug است",
    "rule.checks-every-number.remedy": "enable_check_numerics را بردارید.",
    "rule.anomalies-detected": "autograd در هر step دنبال anomaly می‌گردد، که برای پیدا کردن bug است",
    "rule.anomalies-detected.remedy": "detect_anomaly را بردارید.",
    "rule.function-made-in-loop": "در هر دور حلقه دوباره tf.function روی تابع گذاشته می‌شود، که هر بار آن را از نو "
    "trace می‌کند",
    "rule.function-made-in-loop.remedy": "تابع compileشده را یک بار، پیش از حلقه، بسازید.",
    "rule.counter-as-argument": "به تابعی compileشده عددی از Python داده می‌شود که تغییر می‌کند، و برای هر عدد از نو "
    "trace می‌شود",
    "rule.counter-as-argument.remedy": "به آن tf.constant(number) بدهید، یا input_signature را مشخص کنید.",
    "rule.python-in-graph": "Python در graph اجرا می‌شود (numpy_function، py_function): هر چند worker که باشد، نوبتی "
    "کار می‌کنند",
    "rule.python-in-graph.remedy": "این تابع را با opهای خود TensorFlow بنویسید، مثلاً tf.io و tf.signal.",
    "rule.from-generator": "نمونه‌ها از generatorِ Python می‌آیند: یکی یکی، روی یک هسته",
    "rule.from-generator.remedy": "فایل‌ها را در یک dataset فهرست کنید و با map(..., "
    "num_parallel_calls=tf.data.AUTOTUNE) بار کنید، یا یک بار در فایل‌های TFRecord بنویسید.",
    "rule.loader-without-workers": "یک loader هیچ workerی ندارد: نمونه‌ها بین stepها، در همان پردازهٔ آموزش آماده می‌شوند",
    "rule.loader-without-workers.remedy": "به آن num_workers بدهید، مثلاً از config، تا بتوان جست‌وجویش کرد.",
    "rule.loader-restarted": "loader در هر step از نو شروع می‌شود: workerهایش برای هر batch دوباره راه می‌افتند",
    "rule.loader-restarted.remedy": "iter(loader) را یک بار، پیش از حلقه، بسازید.",
    "rule.serial-map": "map روی dataset یک نمونه یک نمونه اجرا می‌شود",
    "rule.serial-map.remedy": _AUTOTUNE_CALLS,
    "rule.serial-map.stateful": "map روی dataset یک نمونه یک نمونه اجرا می‌شود، و TensorFlow هیچ mapی را که state دارد "
    "موازی نمی‌کند",
    "rule.serial-map.stateful.remedy": _AUTOTUNE_CALLS,
    "rule.no-prefetch": "هیچ datasetی prefetch نمی‌شود: batch بعدی وقتی ساخته می‌شود که step آن را بخواهد",
    "rule.no-prefetch.remedy": "pipeline را با .prefetch(tf.data.AUTOTUNE) تمام کنید.",
    "rule.memory-cleaned": "در هر step حافظه پس داده می‌شود یا garbage collection انجام می‌شود، که step را نگه می‌دارد",
    "rule.memory-cleaned.remedy": "آن را بردارید: framework خودش حافظه‌اش را دوباره به کار می‌برد. حداکثر در هر epoch "
    "یک بار.",
    "rule.numbers-fetched": "میزبان در هر step منتظر GPU می‌ماند تا یک عدد را بخواند",
    "rule.numbers-fetched.remedy": "عددها را روی GPU جمع بزنید (loss.detach())، و هر چند step یک بار بخوانید.",
    "rule.numbers-fetched.tensorflow": "میزبان در هر step منتظر GPU می‌ماند تا یک عدد را بخواند (.numpy())",
    "rule.numbers-fetched.tensorflow.remedy": "عددها را در یک metric جمع بزنید (tf.keras.metrics.Mean)، و هر چند step "
    "یک بار بخوانید.",
    "rule.loader-without-pinning": "یک loader، batchها را در حافظه‌ای می‌دهد که GPU خودش نمی‌تواند از آن کپی کند",
    "rule.loader-without-pinning.remedy": "pin_memory=True بدهید، و با non_blocking=True کپی کنید.",
}
"""Templates of the rules about sources."""

_OWN_THREADS = "اینکه kernelهای GPU را threadهایی جدا راه بیندازند یا نه"

KNOBS: Mapping[str, str] = {
    "knob.native_loading": "خواندن و decode در TensorFlow به جای Python",
    "knob.cache": "نگه داشتن featureهای آماده، به جای حساب کردن دوباره در هر epoch",
    "knob.cache_switch": "نگه داشتن نمونه‌های آماده، به جای بارکردن دوباره در هر epoch",
    "knob.workers": "چند نمونه هم‌زمان آماده می‌شود",
    "knob.prefetch": "چند batch جلوتر از step آماده است",
    "knob.prefetch_switch": "آماده کردن batch بعدی در حین step فعلی",
    "knob.prefetch_factor": "هر workerِ loader چند batch جلوتر از step آماده دارد",
    "knob.pin_memory": "بارکردن در حافظه‌ای که GPU خودش می‌تواند از آن کپی کند",
    "knob.persistent_workers": "نگه داشتن workerهای loader از یک epoch تا بعدی",
    "knob.model_gpu": "کدام GPU آموزش می‌دهد، و کدام داده را آماده می‌کند",
    "knob.data_gpu": "کدام GPU داده را آماده می‌کند",
    "knob.pipeline_buffer": "چند batch بین GPU داده و GPU مدل در صف است",
    "knob.prefetch_to_gpu": "کپی batch بعدی به GPU در حین حساب کردن batch فعلی",
    "knob.gpu_prefetch_strategy": "راهی دیگر برای کپی batchها به GPU جلوتر از step",
    "knob.pipeline_rewrites": "اجازهٔ بازنویسی pipeline ورودی، تا بارکردن و step بیشتر هم‌زمان شوند",
    "knob.self_tuned_buffers": "trainer خودش اندازهٔ bufferها را از تعداد workerها انتخاب کند",
    "knob.debugging": "اجرای op به op یا بررسی هر عدد: برای پیدا کردن bug، و کند",
    "knob.graph_mode": "compile کردن step به یک graph، به جای اجرای op به op",
    "knob.length_buckets": "گذاشتن نمونه‌های هم‌طول در یک batch، تا padding کم باشد",
    "knob.batch_size": "تعداد نمونه در هر step",
    "knob.precision": "حساب با 16 بیت هر جا امن است",
    "knob.bf16": "حساب با bfloat16 هر جا امن است",
    "knob.fp16": "حساب با float16 هر جا امن است",
    "knob.tf32": "ضرب ماتریس‌های float32 با TF32، که GPUها از Ampere به بعد می‌توانند",
    "knob.dtype": "نوع عددی که step با آن حساب می‌کند",
    "knob.torch_compile": "compile کردن مدل با torch.compile",
    "knob.channels_last": "channelهای تصویر کنار هم در حافظه، آن‌طور که convolutionهای سریع می‌خواهند",
    "knob.cudnn_benchmark": "cuDNN اندازه بگیرد کدام convolution سریع‌تر است؛ هر shape تازه یک اندازه‌گیری هزینه دارد",
    "knob.xla": "compile کردن step با XLA",
    "knob.fixed_length": "رساندن هر batch به یک طول با padding، تا shapeها هرگز عوض نشوند",
    "knob.inter_op_threads": "چند op هم‌زمان اجرا شود (0: انتخاب framework)",
    "knob.intra_op_threads": "threadهای درون یک op (0: انتخاب framework)",
    "knob.loader_threads": "threadهای خود pipeline ورودی (0: با step مشترک است)",
    "knob.threads": "threadهایی که هم‌زمان حساب می‌کنند",
    "knob.gpu_thread_mode": _OWN_THREADS,
    "knob.thread_variable": "threadهای یک کتابخانهٔ عددی",
    "knob.gpu_thread_variable": _OWN_THREADS,
    "knob.xla_variable": "flagهای compilerِ XLA",
}
"""Descriptions of the known knobs."""
