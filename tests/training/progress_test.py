from keras_vit.training.progress import Progress, clock_time, memory_in_use


def _progress(lines, **arguments):
    times = iter([100.0, 104.0])
    return Progress(
        total_steps=1000,
        batch_size=8,
        write=lines.append,
        clock=lambda: next(times),
        memory=lambda: 1.25e9,
        **arguments,
    )


def test_a_line_gives_loss_accuracy_speed_memory_and_time_left():
    lines = []
    seconds = _progress(lines).report(step=200, steps=200, loss=0.25, accuracy=0.9876)
    assert seconds == 4.0
    assert lines == ["step  200/1000  loss 0.2500  accuracy  98.8 %  memory 1.2 GB  400 images/s  0:16 left"]


def test_a_line_gives_rate_gradient_waiting_and_the_share_of_a_device():
    lines = []
    _progress(lines, devices=4).report(
        200, 200, loss=0.25, accuracy=0.5, learning_rate=0.003, grad_norm=1.5, waited=0.1
    )
    assert lines == [
        "step  200/1000  loss 0.2500  accuracy  50.0 %  rate 3.00e-03  gradient 1.5  waiting for input 2 %  "
        "memory 1.2 GB  400 images/s (100 a device)  0:16 left"
    ]


def test_times_are_read_by_people():
    assert [clock_time(s) for s in (0, 59.6, 61, 3599, 3725)] == ["0:00", "1:00", "1:01", "59:59", "1:02:05"]


def test_the_memory_of_this_process_is_more_than_an_import_and_less_than_a_terabyte():
    assert 1e8 < memory_in_use() < 1e12
